"""`mmoe score`. It imports what it needs when it runs, as the others of `mmoe.cli.commands` do."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mmoe.cli.options import AsOf, Budget, Imports, InPrecision, OnDevice, Quiet, RunDir, path_as_of
from mmoe.cli.output import advising_resume, print_table, reporter, resumes
from mmoe.plugins import import_modules

# Columns of the input that differ most from training; `_summary.json` has all
_MOST_COLUMNS = 12
_PERCENTILES = ("p1", "p50", "p99")
_SHARES = ("missing", "unseen")


Input = Annotated[str, typer.Option("--input", help="Rows to score: a file, a folder or a glob.")]
Output = Annotated[
    str,
    typer.Option(
        help="A .parquet file for all rows, or a folder or address for one file per input file."
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Input column to copy to the output; several, or repeated."
    ),
]
KeepTypes = Annotated[
    bool,
    typer.Option(
        "--keep-types",
        help="--keep columns of CSV become numbers where all cells are; default: text.",
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TASK",
        help="Write the predictions of these tasks alone; several, by commas too, or repeated.",
    ),
]
Fuse = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=EXPRESSION",
        help="A further column computed from predictions, like 'value=click^0.7 * purchase'; "
        "several, or repeated.",
    ),
]
OnExisting = Annotated[
    Literal["error", "overwrite", "overwrite-partitions"],
    typer.Option(
        help="What to do where the output exists; overwrite-partitions replaces only the "
        "folders, like day=2024-01-31, that get new scores."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="The same as --mode overwrite.")]
Resume = Annotated[bool, typer.Option("--resume", help="Score only what the output folder lacks.")]
TopN = Annotated[
    int | None,
    typer.Option(metavar="N", help="Write only the N best rows of each --per, into one file."),
]
Per = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="With --top: column of the key, like user_id.")
]
By = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="With --top: the task, or the column of --fuse, to rank by."
    ),
]
RowsPerFile = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With a folder: cut Parquet files into pieces of about N rows, so that ranks and "
        "workers share a large one; files of other formats are one piece each.",
    ),
]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EXPECTATION",
        help="Condition for publishing, like 'psi(*) < 0.25', or usual; several, or repeated. "
        "Exit code 3 where one does not hold.",
    ),
]
OnEngine = Annotated[
    Literal["local", "ray"],
    typer.Option(help="ray: workers of a Ray cluster score the files of a folder."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="With --engine ray: a running cluster, or auto for that of this machine; default: "
        "start one here, and end it.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="With --engine ray: number of workers, one CPU each; default: all CPUs."
    ),
]


def score(
    run_dir: RunDir,
    input_: Input,
    output: Output,
    keep: Keep = None,
    keep_types: KeepTypes = False,
    tasks: Tasks = None,
    fuse: Fuse = None,
    mode: OnExisting = "error",
    overwrite: Overwrite = False,
    resume: Resume = False,
    top: TopN = None,
    per: Per = None,
    by: By = None,
    rows_per_file: RowsPerFile = None,
    expect: Expect = None,
    engine: OnEngine = "local",
    address: Address = None,
    workers: Workers = None,
    as_of: AsOf = None,
    device: OnDevice = "auto",
    table_precision: InPrecision = None,
    budget: Budget = None,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Score rows: one column pred_TASK for each task, row order kept."""
    import_modules(import_ or [])
    if overwrite and mode == "overwrite-partitions":
        raise ValueError(f"--overwrite and --mode {mode}: say one of them")
    input_ = path_as_of(input_, as_of)
    elsewhere = _engine(engine, address, workers, run_dir, import_ or [])
    resume = resumes(Path(output), resume, "folder of the scores")
    from mmoe.run import open_run
    from mmoe.score import score_files

    with advising_resume(Path(output)):
        score_files(
            open_run(run_dir),
            input_,
            output,
            keep=keep or [],
            keep_types=keep_types,
            tasks=[name for text in tasks for name in text.split(",")] if tasks else None,
            fused=_fused(fuse or []),
            mode="overwrite" if overwrite else mode,
            resume=resume,
            rows_per_file=rows_per_file,
            top=_top(top, per, by),
            expect=expect,
            on_summary=None if quiet else lambda summary: print_table(summary_table(summary)),
            reporter=reporter(quiet),
            device=device,
            table_precision=table_precision,
            budget=budget,
            engine=elsewhere,
        )


def summary_table(summary: Any) -> Any:
    """Makes a table of a `Summary`: scores, then the columns that differ most from training."""
    from mmoe.run.console import plain_table

    titles, rows = ("mean (test split)", *_PERCENTILES, "NaN"), []
    for name, figures in summary.scores.items():
        before = summary.of_training.get(name, {})
        quantiles = [_number(figures.get(percentile)) for percentile in _PERCENTILES]
        mean = _beside(_number(figures["mean"]), _number(before.get("mean")))
        rows.append([name, mean, *quantiles, _share(figures["nan"])])
    ordered = sorted(summary.columns, key=lambda name: -_size(summary, name))
    for name in ordered[:_MOST_COLUMNS]:
        figures, before = summary.columns[name], summary.of_training.get(name, {})
        shares = [_beside(_share(figures.get(k)), _share(before.get(k))) for k in _SHARES]
        psi = figures.get("psi")
        rows.append([name, *[""] * len(titles), *shares, "" if psi is None else f"{psi:.3f}"])
    if len(ordered) > _MOST_COLUMNS:
        rows.append([f"… and {len(ordered) - _MOST_COLUMNS} more columns"])
    headings = ["column", *titles, "missing (training)", "unseen (training)", "PSI"]
    return plain_table(headings, rows, f"{summary.rows:,} rows", widest=32)


def _beside(now: str, training: str) -> str:
    return f"{now} ({training})" if now and training else now


def _size(summary: Any, name: str) -> float:
    """The size of a column's difference to training."""
    figures, before = summary.columns[name], summary.of_training.get(name, {})
    shares = [(figures.get(key) or 0.0) - (before.get(key) or 0.0) for key in _SHARES]
    psi = 0.0 if name in summary.parts else figures.get("psi") or 0.0
    return max(4 * abs(shares[0]), 4 * shares[1], psi)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g} %"


def _engine(
    engine: str, address: str | None, workers: int | None, run_dir: str, imports: list[str]
) -> Any:
    if engine == "local":
        for option, value in (("--address", address), ("--workers", workers)):
            if value is not None:
                raise ValueError(f"{option} {value}: is of --engine ray; say that too")
        return None
    from mmoe.integrations.ray_engine import RayEngine

    return RayEngine(address=address, count=workers, run=run_dir, imports=imports)


def _top(count: int | None, per: str | None, by: str | None) -> Any:
    if count is None and per is None and by is None:
        return None
    if count is None or per is None or by is None:
        raise ValueError(
            "--top, --per and --by go together: say all three, such as --top 100 --per user_id "
            "--by click"
        )
    from mmoe.score import Top

    return Top(count, per, by)


def _fused(texts: list[str]) -> dict[str, str]:
    fused = {}
    for text in texts:
        name, there, expression = text.partition("=")
        if not there or not name.strip() or not expression.strip():
            raise ValueError(
                f"--fuse {text}: expected NAME=EXPRESSION, such as 'value=click^0.7 * purchase'"
            )
        fused[name.strip()] = expression.strip()
    return fused
