"""Says and writes down who holds what, at the start of a run on several ranks."""

import io

from rich.console import Console

from mmoe.embeddings import plan_table
from mmoe.models.ranker import Ranker
from mmoe.parallel import is_spread, rank, world_size
from mmoe.run.atomic_files import write_json
from mmoe.run.console import Reporter
from mmoe.run.directory import RunDirectory


def say_plan(ranker: Ranker, run: RunDirectory, reporter: Reporter) -> None:
    """Prints who holds which experts and tables, and writes plan.json; on one rank nothing."""
    if world_size() == 1:
        return
    experts = "spread" if is_spread(ranker.network) else "replicated"
    tables = ranker.tables.plan_summary()
    reporter.say(
        f"{world_size()} ranks: gates and towers on every one, experts {experts}, "
        "each batch shared out"
    )
    if tables:
        text = io.StringIO()
        Console(file=text, width=140).print(plan_table(tables))
        for line in text.getvalue().rstrip().splitlines():
            reporter.say(line.rstrip())
    if rank() == 0:
        write_json(run.plan_file, {"ranks": world_size(), "experts": experts, "tables": tables})
