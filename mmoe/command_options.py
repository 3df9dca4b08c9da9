"""Options that several commands have, and what they may be."""

from enum import StrEnum
from typing import Annotated

import typer

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")]
SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Change a value; takes several, and repeats."
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module first that registers kinds of its own; takes several, and repeats.",
    ),
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="VERSION",
        help="Of a lake table: the Delta version, or the Iceberg snapshot, that is read; left out: "
        "the current one. The same as TABLE@VERSION.",
    ),
]


def _columns(what: str) -> object:
    said = (
        f"Columns that {what}, whatever they look like; takes several, by commas too, and repeats."
    )
    return typer.Option(metavar="COLUMN", help=said)


Categorical = Annotated[list[str] | None, _columns("hold ids")]
Numeric = Annotated[list[str] | None, _columns("hold numbers")]
Drop = Annotated[list[str] | None, _columns("are left out")]
RunDir = Annotated[
    str,
    typer.Argument(
        metavar="RUN_DIR", help="A folder made by mmoe train, or the address of one (s3://…)."
    ),
]


class Device(StrEnum):
    """What computes."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


OnDevice = Annotated[
    Device, typer.Option(help="auto: a GPU where there is one; whatever the run was trained on.")
]


class TablePrecision(StrEnum):
    """What tables that are only looked up hold."""

    FP16 = "fp16"
    INT8 = "int8"


InPrecision = Annotated[
    TablePrecision | None,
    typer.Option(help="Tables in fewer bits, and so less memory; left out: as they were trained."),
]


class NewExperts(StrEnum):
    """What becomes of experts that an earlier run did not have."""

    FRESH = "fresh"
    COPY = "copy"


ChangedData = Annotated[
    bool,
    typer.Option(
        "--changed-data", help="With --resume: go on also where files have changed since."
    ),
]

Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        "--column-names",
        metavar="A,B,C",
        help="Names of all columns, where CSV files have no header line.",
    ),
]
Delimiter = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Between cells of CSV files, such as '::'.")
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of the text of CSV files, such as latin-1.")
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of CSV files has the names of the columns; left out: it has, "
        "unless --columns are others.",
    ),
]
