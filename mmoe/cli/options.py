"""Options that several commands have, and what they may be."""

from typing import Annotated, Literal

import typer

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
