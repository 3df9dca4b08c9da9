"""`mmoe explain` and `mmoe prune`; they import what they need when they run."""

from typing import Annotated, Literal

import typer

from mmoe.cli.options import Device, Imports, OnDevice, Quiet, RunDir
from mmoe.cli.output import (
    advising_resume,
    folder_of,
    print_grids,
    print_json,
    print_table,
    reporter,
    say,
)
from mmoe.plugins import import_modules

_Data = Annotated[
    str | None, typer.Option(help="Labelled rows; default: a split of the run's own.")
]
_Split = Annotated[
    Literal["test", "validation"],
    typer.Option(help="Which of the run's own splits, without --data."),
]
_Tolerance = Annotated[
    float,
    typer.Option(
        help="An expert is needed where AUC or NE become worse by more than this without it."
    ),
]
_Gradients = Annotated[
    bool,
    typer.Option(
        "--gradients", help="Also how the tasks' gradients agree on the shared layers (a hint)."
    ),
]
_Features = Annotated[
    bool, typer.Option("--features", help="Also what each task loses when a feature is shuffled.")
]
_Out = Annotated[
    str | None,
    typer.Option(
        help="A folder, or an address, for explain.json and explain.html; default: the run's."
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as explain.json.")]


def explain(
    run_dir: RunDir,
    data: _Data = None,
    split: _Split = "test",
    tolerance: _Tolerance = 0.0002,
    gradients: _Gradients = False,
    features: _Features = False,
    out: _Out = None,
    as_json: _AsJson = False,
    device: OnDevice = "auto",
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Measure what each expert is worth to each task: its metrics without the expert."""
    import_modules(import_ or [])
    from mmoe.datasets.files.data_file import is_address
    from mmoe.explain import ExplainSettings, explain_run
    from mmoe.explain.table import check_new_place, summary_lines, write_explanation
    from mmoe.report.explanation import explanation_grids
    from mmoe.run import open_run

    if data is not None and split != "test":
        raise ValueError("--split is of the run's own rows, and --data names others; leave one out")
    settings = ExplainSettings(tolerance=tolerance, gradients=gradients, features=features)
    if out is None and is_address(run_dir):
        raise ValueError(f"{run_dir}: is an address, where nothing is written; say --out FOLDER")
    run = open_run(run_dir)
    with folder_of(out) as place:
        if place.path is not None and place.address is None:
            check_new_place(place.path)
        result = explain_run(
            run, data, settings, split=split, reporter=reporter(quiet), device=device
        )
        page = write_explanation(result, place.path or run.path)
        shown = place.shown(page) if place.path is not None else str(page)
    if as_json:
        print_json(result)
        return
    for grids in explanation_grids(result).values():
        print_grids(grids)
    for line in summary_lines(result, run_dir):
        say(line)
    say(shown)


def prune(
    run_dir: RunDir,
    experts: Annotated[
        str,
        typer.Option(
            metavar="N,N,…", help="Numbers of the experts to remove (column # of mmoe explain)."
        ),
    ],
    out: Annotated[str, typer.Option(help="The new run's directory, or an address.")],
    finetune_epochs: Annotated[
        int, typer.Option(help="Epochs to train on afterwards; 0: evaluate what is left.")
    ] = 0,
    data: Annotated[
        str | None, typer.Option(help="Overrides data.path: where the run's rows are now.")
    ] = None,
    device: Annotated[
        Device | None, typer.Option(help="Overrides training.device; not stored.")
    ] = None,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Write a run without some of its experts; with --finetune-epochs, train it on."""
    import_modules(import_ or [])
    from mmoe.explain import prune_run
    from mmoe.run import open_run
    from mmoe.run.console import metrics_table

    parts = [part.strip() for part in experts.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ValueError(f"--experts: expected numbers such as 3,5, got {experts!r}")
    run = open_run(run_dir, tensors=("model", "training"))
    with folder_of(out) as place, advising_resume():
        assert place.path is not None, "it is asked for"
        finished = prune_run(
            run,
            list(map(int, parts)),
            place.path,
            finetune_epochs=finetune_epochs,
            data=data,
            reporter=reporter(quiet),
            device=device,
        )
        print_table(metrics_table(finished.metrics, "test split"))
        say(place.shown(finished.directory.path))
