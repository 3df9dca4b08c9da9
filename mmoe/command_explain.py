"""`mmoe explain` and `mmoe prune`; they import what they need, as those of `mmoe.commands` do."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from mmoe.command_options import Device, Imports, OnDevice, Quiet, RunDir
from mmoe.command_out import folder_of
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
    gradients: Annotated[
        bool,
        typer.Option(
            "--gradients", help="Also which tasks help or hurt each other on the shared layers."
        ),
    ] = False,
    features: Annotated[
        bool, typer.Option("--features", help="Also what each task loses without each feature.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            help="A folder, or an address, for explain.json and explain.html; left out: the run's."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as explain.json.")] = False,
    device: OnDevice = Device.AUTO,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Say what each expert is worth to each task: what would change if it were gone."""
    import_modules(import_ or [])
    from mmoe.datasets.files.data_file import is_address
    from mmoe.explain import ExplainSettings, explain_run
    from mmoe.explain.files import check_new_place, write_explanation
    from mmoe.explain.table import explanation_tables, summary_lines
    from mmoe.run import open_run

    if data is not None and split is not Split.TEST:
        raise ValueError("--split is of the run's own rows, and --data names others; leave one out")
    settings = ExplainSettings(tolerance=tolerance, gradients=gradients, features=features)
    if out is None and is_address(run_dir):
        raise ValueError(f"{run_dir}: is an address, where nothing is written; say --out FOLDER")
    run = open_run(run_dir)
    with folder_of(out) as place:
        if place.path is not None and place.address is None:
            check_new_place(place.path)
        result = explain_run(
            run, data, settings, split=split.value, reporter=reporter(quiet), device=device.value
        )
        page = write_explanation(result, place.path or run.path)
        shown = place.shown(page) if place.path is not None else str(page)
    if as_json:
        print(json.dumps(result, indent=2, allow_nan=False))
        return
    for table in explanation_tables(result):
        print_table(table)
        print()
    for line in summary_lines(result, run_dir):
        say(line)
    say(shown)
