"""`mmoe score`. It imports what it needs when it runs, as the others of `mmoe.commands` do."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mmoe.command_config import path_as_of
from mmoe.command_options import AsOf, Device, Imports, InPrecision, OnDevice, Quiet, RunDir
from mmoe.command_output import print_table, reporter
from mmoe.plugins import import_modules
from mmoe.resuming import advising_resume, resumes


class Mode(StrEnum):
    """What becomes of an output that is there."""

    ERROR = "error"
    OVERWRITE = "overwrite"
    OVERWRITE_PARTITIONS = "overwrite-partitions"


class Where(StrEnum):
    """Whose processes score."""

    LOCAL = "local"
    RAY = "ray"


def score(
    run_dir: RunDir,
    input_: Annotated[str, typer.Option("--input", help="A file of rows, a folder or a glob.")],
    output: Annotated[
        str,
        typer.Option(
            help="A Parquet file for all rows, or a folder or address, which gets one for each "
            "input file."
        ),
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Input column to copy; takes several, and repeats."),
    ] = None,
    keep_types: Annotated[
        bool,
        typer.Option(
            "--keep-types",
            help="Kept columns of CSV become numbers where all cells are; else text.",
        ),
    ] = False,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK",
            help="Write the predictions of these alone; takes several, by commas too, and repeats.",
        ),
    ] = None,
    fuse: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=EXPRESSION",
            help="A further column, such as 'value=click^0.7 * purchase'; takes several, and "
            "repeats.",
        ),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option(
            help="What becomes of an output that is there; overwrite-partitions replaces the "
            "folders such as day=2024-01-31 that get new scores, and leaves the others."
        ),
    ] = Mode.ERROR,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="As --mode overwrite.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Score only what the output folder has not.")
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(metavar="N", help="Write the N best rows of each --per alone, into one file."),
    ] = None,
    per: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of --top: the key, such as user_id.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Of --top: what is best: a task, or a column of --fuse."
        ),
    ] = None,
    rows_per_file: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Into a folder: cut each file into pieces of about N rows, which ranks and "
            "workers share out.",
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPECTATION",
            help="What has to hold before scores are published, such as 'psi(*) < 0.25', or usual; "
            "takes several, and repeats. Else: exit code 3.",
        ),
    ] = None,
    engine: Annotated[
        Where, typer.Option(help="ray: workers of a cluster share out the files of a folder.")
    ] = Where.LOCAL,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Of --engine ray: a cluster that is there, or auto: the one of this machine; left "
            "out: one that is started here, and ended.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of --engine ray: each on a CPU; left out: all of the cluster's."
        ),
    ] = None,
    as_of: AsOf = None,
    device: OnDevice = Device.AUTO,
    table_precision: InPrecision = None,
    import_: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Score rows: one column pred_TASK for each task, row order kept."""
    import_modules(import_ or [])
    if overwrite and mode is Mode.OVERWRITE_PARTITIONS:
        raise ValueError(f"--overwrite and --mode {mode.value}: say one of them")
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
            mode="overwrite" if overwrite else mode.value,
            resume=resume,
            rows_per_file=rows_per_file,
            top=_top(top, per, by),
            expect=expect,
            on_summary=None if quiet else _print_summary,
            reporter=reporter(quiet),
            device=device.value,
            table_precision=None if table_precision is None else table_precision.value,
            engine=elsewhere,
        )


def _print_summary(summary: Any) -> None:
    from mmoe.score.guard.table import summary_table

    print_table(summary_table(summary))


def _engine(
    engine: Where, address: str | None, workers: int | None, run_dir: str, imports: list[str]
) -> Any:
    if engine is Where.LOCAL:
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
