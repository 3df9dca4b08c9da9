"""Types of columns that are copied from many files into one: one type each, over all of them."""

from collections.abc import Sequence
from functools import partial
from itertools import compress

import pyarrow as pa
import pyarrow.parquet as pq

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.formats import file_types, format_of, has_rows, iter_file
from mmoe.datasets.files.readers import Paths, common_schema, largest_in_file, signed_where_it_fits
from mmoe.datasets.files.resolve import resolve_files
from mmoe.datasets.rows.locations import check_columns
from mmoe.datasets.values.arrow import is_text, plain, plain_type, widen
from mmoe.datasets.values.text import blank_to_null, loses_digits, settle, to_booleans

# Rows held at a time where a column has to be looked through
_ROWS = 65_536


def kept_types(
    source: Paths, keep: Sequence[str], *, read_text: bool = False
) -> dict[str, pa.DataType]:
    """Finds one type for each kept column over all files, before anything is written.

    CSV cells are kept as text: what they look like may change from file to file.

    Args:
        source: All files.
        keep: Names of columns.
        read_text: Give CSV columns the type that all of their cells have; they are read twice then.

    Raises:
        ValueError: The files have no type in common, or Parquet cannot store it.
    """
    files = resolve_files(source)
    schemas = [file_types(file) for file in files]
    for file, schema in zip(files, schemas, strict=True):
        check_columns(dict.fromkeys(keep, "--keep"), schema.names, str(file))
    kept = [
        pa.schema(
            [(n, _kept_type(schema, n, of_candidates=file.candidates is not None)) for n in keep]
        )
        for file, schema in zip(files, schemas, strict=True)
    ]
    if any(schema != kept[0] for schema in kept):
        # Writers make up the types of a part without rows
        held = [has_rows(file) for file in files]
        if any(held):
            files, kept = list(compress(files, held)), list(compress(kept, held))
    read_text = read_text and all(format_of(file).is_text for file in files)
    if read_text:
        kept = [_read_types(file, schema) for file, schema in zip(files, kept, strict=True)]
    largest = [partial(largest_in_file, file, rows_per_chunk=_ROWS) for file in files]
    try:
        types = common_schema(
            files, signed_where_it_fits(kept, largest), partial(_in_common, or_text=read_text)
        )
    except ValueError as error:
        raise ValueError(f"{error}, or do not --keep it") from None
    for field in types:
        _refuse_unwritable(field, files[0])
    return dict(zip(types.names, types.types, strict=True))


def _in_common(there: pa.DataType, here: pa.DataType, or_text: bool) -> pa.DataType | None:
    """A type that holds both; else text, as in one file of both."""
    if there != here:
        there, here = _decoded(there), _decoded(here)
    known = [kind for kind in (there, here) if not pa.types.is_null(kind)]
    mixed = len({pa.types.is_boolean(kind) for kind in known}) > 1  # would make true 1.0
    both = None if mixed else widen(there, here)
    return pa.string() if both is None and or_text else both


def _decoded(kind: pa.DataType) -> pa.DataType:
    if not isinstance(kind, pa.DictionaryType):
        return kind
    return pa.string() if is_text(kind.value_type) else kind.value_type


def _kept_type(schema: pa.Schema, name: str, *, of_candidates: bool = False) -> pa.DataType:
    """The type that the column came in, if what is read (plain values) can be cast back to it."""
    kind = schema.field(name).type
    if of_candidates:
        kind = _decoded(kind)  # of a request, whose value its candidates repeat
    if is_text(kind):
        return pa.string()
    if isinstance(kind, pa.DictionaryType):
        if is_text(kind.value_type):
            # Other files and chunks may bring more values than the codes have room for, and in
            # another order
            return pa.dictionary(pa.int32(), pa.string())
        return _kept_type(pa.schema([(name, kind.value_type)]), name)  # Arrow codes text alone
    as_read = plain_type(kind)
    if pa.types.is_nested(kind):
        return as_read
    try:
        pa.chunked_array([], as_read).cast(kind)
    except pa.ArrowException:
        return as_read
    return kind


def _read_types(file: DataFile, text: pa.Schema) -> pa.Schema:
    """Finds the type of all cells of each column, read chunk by chunk."""
    found: dict[str, pa.DataType] = dict.fromkeys(text.names, pa.null())
    for table in iter_file(file, text.names, _ROWS):
        for name, there in found.items():
            cells = plain(table[name])
            here = pa.null() if cells.null_count == len(cells) else settle(cells).type
            common = _in_common(there, here, or_text=False)
            found[name] = pa.large_string() if common is None else common
    return pa.schema(
        [
            (name, pa.string() if pa.types.is_null(k) or is_text(k) else k)
            for name, k in found.items()
        ]
    )


def _refuse_unwritable(field: pa.Field, file: DataFile) -> None:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowNotImplementedError:
        raise ValueError(
            f"{file}: column {field.name!r}, to be kept, holds {field.type}, which Parquet cannot "
            "store; do not --keep it"
        ) from None


def as_kept(column: pa.ChunkedArray, name: str, kind: pa.DataType, origin: str) -> pa.ChunkedArray:
    """Casts a column that is kept to the type that it has over all files.

    Raises:
        ValueError: It would be rounded.
    """
    if not len(column):
        return pa.chunked_array([], kind)
    if is_text(column.type) and not is_text(_decoded(kind)):
        column = blank_to_null(column)  # cells of CSV, all of which are such values
        if pa.types.is_floating(kind) and loses_digits(column, column.cast(kind)):
            raise ValueError(
                f"{origin}: column {name!r}, to be kept, has whole numbers that {kind}, which "
                "other files need, would round; leave out --keep-types"
            )
        if pa.types.is_boolean(kind):
            flags = to_booleans(column)
            assert flags is not None, "all cells have been looked at"
            return flags
    try:
        return column.cast(kind, safe=pa.types.is_integer(column.type))
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{origin}: column {name!r}, to be kept, holds {column.type} here, but together with "
            f"other files {kind}, which would round it ({error}); write the column with one type, "
            "or do not --keep it"
        ) from None
