"""The commands. Each imports what it needs, so `mmoe --help` answers at once."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mmoe import __version__
from mmoe.cli.many import backtest, compare, tune
from mmoe.cli.options import (
    AsOf,
    Budget,
    Categorical,
    ChangedData,
    Columns,
    DataOfConfig,
    Delimiter,
    Device,
    Drop,
    Encoding,
    Header,
    Imports,
    InPrecision,
    Numeric,
    OnDevice,
    Overwrite,
    Quiet,
    RunDir,
    SetValues,
    config_of_command,
    frozen_values,
    own_config,
    path_as_of,
    with_imports,
)
from mmoe.cli.output import (
    advising_resume,
    by_time,
    file_of,
    folder_of,
    print_grids,
    print_json,
    print_table,
    reporter,
    resumes,
    say,
)
from mmoe.cli.score import score
from mmoe.parallel.launch.launcher import has_launched
from mmoe.plugins import import_modules

app = typer.Typer(
    help="Multi-task ranking with Multi-gate Mixture-of-Experts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _every_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    command = context.invoked_subcommand
    if has_launched() and command not in _ON_RANKS:
        raise ValueError(
            f"mmoe {command} runs on one process; start it without torchrun "
            f"(several ranks: mmoe {', '.join(_ON_RANKS)})"
        )


_ON_RANKS = ("train", "backtest", "evaluate", "score")

_RecipeOrConfig = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE_OR_CONFIG.yaml",
        help="A config file, or a recipe: synthetic-funnel, census-income, hillstrom, …; with "
        "--warm-start or --resume left out: the run's own.",
    ),
]
_Out = Annotated[
    str | None, typer.Option(help="Run directory, or an address; default: runs/NAME-DATE-TIME.")
]
_Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")]
_WarmStart = Annotated[
    str | None,
    typer.Option(metavar="RUN_DIR", help="Start from the weights and vocabularies of this run."),
]
_NewExperts = Annotated[
    Literal["fresh", "copy"] | None,
    typer.Option(help="How experts begin that the --warm-start run did not have; default: fresh."),
]
_Freeze = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART",
        help="Part of the --warm-start run that stays as it scores, such as experts, tables, "
        "towers.click, gates, encoder; the key training.freeze. Takes several, and repeats.",
    ),
]
_Profile = Annotated[
    bool,
    typer.Option(
        "--profile", help="Print where a step's time goes (ms by part), and write RUN/profile/."
    ),
]
_Device = Annotated[
    Device | None,
    typer.Option(help="Overrides training.device; not stored, so --resume may change it."),
]


@app.command()
def train(
    recipe_or_config: _RecipeOrConfig = None,
    data: DataOfConfig = None,
    out: _Out = None,
    set_: SetValues = None,
    resume: _Resume = False,
    warm_start: _WarmStart = None,
    new_experts: _NewExperts = None,
    freeze: _Freeze = None,
    profile: _Profile = False,
    device: _Device = None,
    changed_data: ChangedData = False,
    as_of: AsOf = None,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Train, evaluate on the test split, and write a run directory."""
    with folder_of(out, resume=resume) as place:
        resume = resumes(place.path, resume, "directory of the run", changed_data=changed_data)
        if new_experts is not None and warm_start is None:
            raise ValueError(f"--new-experts {new_experts} needs --warm-start RUN_DIR")
        own = None if recipe_or_config else own_config(place.path if resume else None, warm_start)
        values = [*(set_ or []), *frozen_values(freeze)]
        found = own or recipe_or_config or ""
        config, data = config_of_command(found, values, import_, data, as_of)
        from mmoe.train import WarmStart, train_run

        start = None
        if warm_start is not None:
            start = WarmStart(warm_start, new_experts or "fresh")
        with advising_resume():
            finished = train_run(
                config,
                place.path or by_time(config.name),
                data=data,
                resume=resume,
                warm_start=start,
                reporter=reporter(quiet),
                profile=profile,
                device=device,
                numbered=place.path is None,
                changed_data=changed_data,
            )
        _print_metrics(finished.metrics)
        say(place.shown(finished.directory.path))


for _command in (backtest, compare, tune):
    app.command()(_command)


_EvaluateData = Annotated[
    str | None, typer.Option(help="Labelled rows; default: the run's own test split.")
]
_AllNegatives = Annotated[
    bool,
    typer.Option(
        "--all-negatives",
        help="These rows hold all negatives, though the log of training kept a share "
        "(negative_sampling_rate).",
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON in the form of metrics.json.")]
_ChangedData = Annotated[
    bool,
    typer.Option(
        "--changed-data",
        help="It is known that files have changed since training: do not warn that rows of "
        "the test split may have been trained on.",
    ),
]
_AsOf = Annotated[
    str | None,
    typer.Option(
        metavar="DATETIME|VERSION",
        help="When the labels of --data were collected, such as 2024-01-31T00:00, for tasks "
        "with matures_after; left out: at the newest of its rows' times. Where --data is a "
        "lake table, a whole number is the version of it that is read.",
    ),
]
_Labels = Annotated[
    str | None,
    typer.Option(
        help="Labels that came later, of rows that --data holds as `mmoe score` wrote them."
    ),
]
_Key = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Of --labels: column that identifies a row, in both files; several, or repeated.",
    ),
]


@app.command()
def evaluate(
    run_dir: RunDir,
    data: _EvaluateData = None,
    all_negatives: _AllNegatives = False,
    as_json: _AsJson = False,
    changed_data: _ChangedData = False,
    as_of: _AsOf = None,
    labels: _Labels = None,
    key: _Key = None,
    device: OnDevice = "auto",
    table_precision: InPrecision = None,
    budget: Budget = None,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate a run's best model, or scores that it wrote earlier (--labels)."""
    import_modules(import_ or [])
    from mmoe.datasets.files.lake import kind_of_table
    from mmoe.run import open_run
    from mmoe.train import evaluate_run

    if data is not None and as_of is not None and as_of.isdecimal() and kind_of_table(data):
        data, as_of = path_as_of(data, as_of), None
    if labels is not None or key:
        if labels is None or data is None:
            raise ValueError(
                "--labels, --key and --data go together: --data SCORED --labels LATER --key user_id"
            )
        from mmoe.train.scored import evaluate_scored

        metrics = evaluate_scored(
            open_run(run_dir), data, labels, key or [], reporter(quiet), all_negatives=all_negatives
        )
        title = f"{data} with {labels}"
    else:
        metrics = evaluate_run(
            open_run(run_dir),
            data,
            reporter(quiet),
            all_negatives=all_negatives,
            device=device,
            table_precision=table_precision,
            budget=budget,
            changed_data=changed_data,
            as_of=as_of,
        )
        changed = "data_changed" in metrics and not changed_data
        title = (data or "test split") + ", its data changed since training" * changed
    if as_json:
        print_json(metrics)
    else:
        _print_metrics(metrics, title)


app.command()(score)


_ExplainData = Annotated[
    str | None, typer.Option(help="Labelled rows; default: a split of the run's own.")
]
_ExplainSplit = Annotated[
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
_ExplainOut = Annotated[
    str | None,
    typer.Option(
        help="A folder, or an address, for explain.json and explain.html; default: the run's."
    ),
]
_ExplainJson = Annotated[bool, typer.Option("--json", help="Print JSON, as explain.json.")]


@app.command()
def explain(
    run_dir: RunDir,
    data: _ExplainData = None,
    split: _ExplainSplit = "test",
    tolerance: _Tolerance = 0.0002,
    gradients: _Gradients = False,
    features: _Features = False,
    out: _ExplainOut = None,
    as_json: _ExplainJson = False,
    device: OnDevice = "auto",
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Measure what each expert is worth to each task: its metrics without the expert."""
    import_modules(import_ or [])
    from mmoe.datasets.files.data_file import is_address
    from mmoe.explain import (
        ExplainSettings,
        check_new_place,
        explain_run,
        summary_lines,
        write_explanation,
    )
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
        shown = place.shown(write_explanation(result, place.path or run.path))
    if as_json:
        print_json(result)
        return
    for grids in explanation_grids(result).values():
        print_grids(grids)
    for line in summary_lines(result, run_dir):
        say(line)
    say(shown)


@app.command()
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


@app.command()
def unshard(
    run_dir: RunDir,
    output: Annotated[str, typer.Option(help="The safetensors file to write, or its address.")],
    which: Annotated[
        str, typer.Option(help="best, latest, or a folder in RUN_DIR/checkpoint.")
    ] = "best",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write a run's weights as one safetensors file, whatever ranks wrote them."""
    from mmoe.checkpoint.plain_file import unshard as join
    from mmoe.run import open_run

    run = open_run(run_dir, which=which)
    with file_of(output, "--output", overwrite=overwrite) as place:
        assert place.path is not None, "it is asked for"
        join(run, place.path, which, overwrite=overwrite, reporter=reporter(quiet))


@app.command()
def report(
    run_dir: RunDir,
    output: Annotated[
        str | None,
        typer.Option(help="HTML file, or its address; default: RUN_DIR/report.html, replaced."),
    ] = None,
    overwrite: Overwrite = False,
    import_: Imports = None,
) -> None:
    """Write a run's report: one HTML page that needs no network."""
    import_modules(import_ or [])
    from mmoe.datasets.files.data_file import is_address
    from mmoe.report import write_report
    from mmoe.run import open_run

    if is_address(run_dir):
        if output is None:
            raise ValueError(
                f"{run_dir}: is an address, where no page is written; say --output FILE.html"
            )
        run_dir = str(open_run(run_dir, tensors=()).path)
    if output is None:
        say(write_report(run_dir, None, overwrite=overwrite))
        return
    with file_of(output, "--output", overwrite=overwrite) as place:
        say(place.shown(write_report(run_dir, place.path, overwrite=overwrite)))


_InitData = Annotated[str, typer.Argument(metavar="DATA", help="A log with labels.")]
_Label = Annotated[
    list[str],
    typer.Option(help="Label column, or an expression like 'rating >= 4'; several, or repeated."),
]
_InitOut = Annotated[str, typer.Option(help="The config to write, or its address.")]
_Request = Annotated[
    str | None,
    typer.Option(help="Column of the request id, which the candidates of a request share."),
]
_Split = Annotated[
    Literal["auto", "random"],
    typer.Option(
        help="auto: by time where the log has one; random: the rows to be scored are of the "
        "training's own time, so that what happened on a day foretells others of it."
    ),
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing config.")]


@app.command()
def init(
    data: _InitData,
    label: _Label,
    out: _InitOut = "config.yaml",
    categorical: Categorical = None,
    numeric: Numeric = None,
    drop: Drop = None,
    request: _Request = None,
    split: _Split = "auto",
    overwrite: _Overwrite = False,
    columns: Columns = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    header: Header = None,
    as_of: AsOf = None,
    import_: Imports = None,
) -> None:
    """Look at a log and write a commented config that trains unchanged."""
    _check_new_config(Path(out), out, overwrite=overwrite)
    import_modules(import_ or [])
    from mmoe.datasets import infer_config
    from mmoe.datasets.files.readers import column_names
    from mmoe.datasets.files.sampling import sample_table
    from mmoe.datasets.infer.config import commented_yaml, with_requests
    from mmoe.datasets.infer.guess_tasks import separate_labels
    from mmoe.datasets.infer.told import Told, rows_to_look_at, with_csv_keys
    from mmoe.run import write_text

    data = path_as_of(data, as_of)
    rows = rows_to_look_at(data, columns, delimiter, encoding, header)
    there = column_names(rows)
    label = separate_labels(label, there, data)
    told = replace(Told.of_options(there, categorical, numeric, drop), split=split)
    sample = sample_table(rows, without=told.unread(label))
    if sample.note:
        say(f"{data}: {sample.note}")
    about: Any = {"path": data, "origin": data, "told": told, "rows": sample.rows}
    if request is not None:
        about["told"] = told.without(request, sample.table, data)
    name = Path(data).name.split(".")[0]
    config, reasons = infer_config(sample.table, label, name=name, **about)
    if request is not None:
        config = with_requests(config, reasons, sample.table, request, data)
    config = with_imports(with_csv_keys(config, rows), import_)
    with file_of(out, "--out", overwrite=overwrite) as place:
        assert place.path is not None, "it is asked for"
        _check_new_config(place.path, out, overwrite=overwrite)  # file://…, or made meanwhile
        place.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(place.path, commented_yaml(config, reasons))
    _say_found(data, out, label, config, reasons)


def _check_new_config(path: Path, out: str, *, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise ValueError(
            f"--out {out}: exists already; add --overwrite to replace it, or choose another name"
        )


def _say_found(data: str, out: str, label: list[str], config: Any, reasons: Any) -> None:
    """Says what a written config holds, and what was left out or is unsure."""
    from mmoe.datasets.labels.expressions import quote

    if reasons.repeated:
        say(
            f"{data}: {reasons.repeated}; data.repeated_rows: {config.data.repeated_rows} keeps "
            "them in one split, drop counts each row once"
        )
    counted = {"feature": config.features, "task": config.tasks}
    totals = (f"{len(each)} {name}{'s' * (len(each) > 1)}" for name, each in counted.items())
    say(f"{out}: {', '.join(totals)}")
    as_given = {*label, *map(quote, label)}
    for task in config.tasks:
        counts = "" if task.label in as_given else f", {task.label}"
        say(f"  task {task.name}: {task.kind}{counts}")
    for task, event in reasons.consequences.items():
        say(f"  {task} is 0 wherever {event} is: see the comment on observed_when in {out}")
    for column, reason in reasons.left_out:
        say(f"  left out {column!r}: {reason}")
    if reasons.missing:
        say(f"  read as missing: {_met(reasons.missing)}; data.missing_words lists such words")
    if reasons.unsure:
        listed = ", ".join(repr(column) for column in reasons.unsure)
        say(f"  unsure whether ids or numbers: {listed}; say --categorical or --numeric")
    for line in reasons.unclear:
        say(f"  {line}")
    say(f"next: mmoe train {out}")


def _met(missing: dict[str, dict[str, int]]) -> str:
    """Words for what is missing, column by column."""
    return "; ".join(
        f"{column!r} has " + ", ".join(f"{word} ({rows:,} rows)" for word, rows in words.items())
        for column, words in missing.items()
    )


@app.command()
def doctor() -> None:
    """Show versions and missing packages; exit code 1 if something needed is broken."""
    from mmoe.cli.doctor import diagnose

    sys.exit(diagnose())


def _print_metrics(metrics: dict[str, Any], title: str = "test split") -> None:
    """Metrics as a table on standard output."""
    from mmoe.run.console import metrics_table, over_wide_table

    print_table(metrics_table(metrics, title))
    if "over_wide" in metrics:
        print_table(over_wide_table(metrics["over_wide"]))
