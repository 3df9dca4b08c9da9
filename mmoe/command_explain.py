"""`mmoe explain` and `mmoe prune`; they import what they need, as those of `mmoe.commands` do."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from mmoe.command_options import Device, Imports, OnDevice, Quiet, RunDir
from mmoe.command_output import print_table, reporter, say
from mmoe.plugins import import_modules


class Split(StrEnum):
    """Which of a run's own rows."""

    TEST = "test"
    VALIDATION = "validation"


def explain(
    run_dir: RunDir,
    data: Annotated[
        str | None, typer.Option(help="Labelled rows; left out: a split of the run's own.")
    ] = None,
    split: Annotated[
        Split, typer.Option(help="Which of the run's own, where there is no --data.")
    ] = Split.TEST,
    tolerance: Annotated[
        float,
        typer.Option(help="How much worse AUC or NE may become before an expert is missed."),
    ] = 0.0002,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as explain.json.")] = False,
    device: OnDevice = Device.AUTO,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Say what each expert is worth to each task: what would change if it were gone."""
    import_modules(import_ or [])
    from mmoe.explain import ExplainSettings, explain_run
    from mmoe.explain.table import explanation_tables, summary_lines
    from mmoe.run import open_run

    result = explain_run(
        open_run(run_dir),
        data,
        ExplainSettings(tolerance=tolerance),
        split=split.value,
        reporter=reporter(quiet),
        device=device.value,
    )
    if as_json:
        print(json.dumps(result, indent=2, allow_nan=False))
        return
    for table in explanation_tables(result):
        print_table(table)
        print()
    for line in summary_lines(result, run_dir):
        say(line)
