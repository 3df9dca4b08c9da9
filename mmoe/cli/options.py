"""Options that several commands have, and the config that a command runs with."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mmoe.plugins import import_modules
from mmoe.terminal import readable

if TYPE_CHECKING:
    from mmoe.config import RunConfig

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the result alone: no progress, no notes.")
]
SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Override a config key, like training.epochs=3; several values, or repeated.",
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Module of yours to import first, which registers kinds; several, or repeated.",
    ),
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="VERSION",
        help="For a Delta or Iceberg table: the version or snapshot to read, like TABLE@VERSION; "
        "default: the current one.",
    ),
]


def _columns(what: str) -> object:
    said = f"Columns that {what}, whatever their values say; several, by commas too, or repeated."
    return typer.Option(metavar="COLUMN", help=said)


Categorical = Annotated[list[str] | None, _columns("hold ids")]
Numeric = Annotated[list[str] | None, _columns("hold numbers")]
Drop = Annotated[list[str] | None, _columns("are no features")]
RunDir = Annotated[
    str,
    typer.Argument(
        metavar="RUN_DIR", help="A folder made by mmoe train, or the address of one (s3://…)."
    ),
]


Device = Literal["auto", "cpu", "cuda"]
OnDevice = Annotated[
    Device, typer.Option(help="auto: a GPU where there is one, wherever the run was trained.")
]


InPrecision = Annotated[
    Literal["fp16", "int8"] | None,
    typer.Option(help="Embedding tables in fewer bits, for less memory; default: as trained."),
]

Budget = Annotated[
    int | None,
    typer.Option(
        metavar="K", help="Experts that one row computes at most; default: score.budget of the run."
    ),
]


DataOfConfig = Annotated[
    str | None, typer.Option(help="Rows to read instead of data.path of the config.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]
ChangedData = Annotated[
    bool,
    typer.Option(
        "--changed-data", help="With --resume: go on though data files have changed since."
    ),
]

Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        "--column-names",
        metavar="A,B,C",
        help="Names of all columns of CSV files without a header line.",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Text between the cells of CSV files, like '::'; default: found."
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Encoding of CSV files, like latin-1; default: UTF-8."),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of CSV files names the columns; default: it does, unless "
        "--columns names others.",
    ),
]


def config_of_command(
    found: str | Path,
    overrides: Sequence[str] | None,
    imports: Sequence[str] | None,
    data: str | None,
    as_of: str | None,
) -> tuple["RunConfig", str | None]:
    """Reads a config, after importing what the command line names; the config names it then too.

    Args:
        found: A recipe's name or a file's, as somebody wrote it; or `own_config`, a run's.
        overrides: Of `--set`.
        imports: Of `--import`.
        data: Of `--data`.
        as_of: Of `--as-of`.

    Returns:
        The config and the data, with lake tables at the version asked for.

    Raises:
        ValueError: A module cannot be imported, or the config cannot be used; the version is no
            whole number, or a path names one itself.
    """
    import_modules(imports or [])
    from mmoe.config import load_config
    from mmoe.datasets import load_recipe

    if isinstance(found, Path):
        config = load_config(found, overrides or [], of_run=True, say=_note)
    else:
        config = load_recipe(found, overrides or [], say=_note)
    config = with_imports(config, imports)
    if as_of is None:
        return config, data
    from mmoe.datasets.rows.sources import at_versions

    if data is not None and config.data.split.by != "file":
        return config, path_as_of(data, as_of)
    named = [getattr(config.data, name) for name in ("path", "train", "validation", "test")]
    paths = [one for some in named for one in ([some] if isinstance(some, str) else some or ())]
    for path in paths:
        path_as_of(path, as_of)
    return at_versions(config, dict.fromkeys(paths, as_of)), data


def path_as_of(path: str, as_of: str | None) -> str:
    """Returns the path of a lake table with the version of `--as-of`.

    Raises:
        ValueError: That is no whole number, or the path names a version itself.
    """
    from mmoe.datasets.files.lake import at_version, split_version

    if as_of is None:
        return path
    if not as_of.isdecimal():
        raise ValueError(
            f"--as-of {as_of}: expected a version of a Delta table or a snapshot of an Iceberg "
            "table, a whole number"
        )
    if split_version(path)[1] is not None:
        raise ValueError(f"--as-of {as_of}: {path} names a version already; leave one of them out")
    return at_version(path, as_of)


def _note(line: str) -> None:
    """Writes a note to standard error, where no result stands."""
    sys.stderr.write(f"note: {readable(line)}\n")


def with_imports(config: "RunConfig", imports: Sequence[str] | None) -> "RunConfig":
    """Returns the config with these modules among its `imports`: a run says what it needs."""
    named = list(dict.fromkeys([*config.imports, *(imports or [])]))
    return config.model_copy(update={"imports": named})


def own_config(resumed: Path | None, warm_start: str | Path | None) -> Path:
    """Returns the config file of the run that is resumed or continued.

    Raises:
        ValueError: There is none.
    """
    from mmoe.run import RunDirectory, open_run

    if resumed is not None and RunDirectory(resumed).config_file.exists():
        return RunDirectory(resumed).config_file
    if warm_start is not None:
        return open_run(warm_start, tensors=()).config_file
    if resumed is not None:
        raise ValueError(
            f"--resume: {resumed} holds no config of a run; give RECIPE_OR_CONFIG.yaml too"
        )
    raise ValueError("RECIPE_OR_CONFIG.yaml is missing; only --warm-start and --resume know one")


def frozen_values(freeze: Sequence[str] | None) -> list[str]:
    """Returns what `--freeze` says as `--set` would say it.

    Example:
        >>> frozen_values(["experts", "towers.*"])
        ['training.freeze=["experts", "towers.*"]']
    """
    return [f"training.freeze={json.dumps(list(freeze))}"] if freeze else []
