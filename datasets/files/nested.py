"""Rows that are requests, with a list of candidates each: read as a row for each candidate."""

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.locations import (
    HIDDEN,
    REQUEST_COLUMN,
    ROW_COLUMN,
    MissingColumnError,
    missing_column,
)
from mmoe.datasets.values.arrow import is_list, list_lengths, one_chunk, pc, plain, plain_type
from mmoe.datasets.values.keys import codes_of

_KEY = "data.requests.candidates"
_REQUESTS = b"mmoe.requests"


def candidate_fields(
    schema: pa.Schema, candidates: str, origin: str, known: Collection[str] = ()
) -> pa.StructType:
    """Returns what is known of each candidate.

    Args:
        schema: Of rows that are requests.
        candidates: The column with their lists.
        origin: Starts error messages.
        known: Columns that rows are known to have. Where every list is empty, or missing, so that
            the column has no type, those that are not beside it are fields, of the type null.

    Raises:
        ValueError: There is no such column, or it holds no structs, or nothing says of which
            fields; or a field is called like a column beside it.
    """
    if candidates not in schema.names:
        raise ValueError(missing_column(candidates, schema.names, origin, _KEY))
    kind = schema.field(candidates).type
    beside = {name for name in schema.names if name != candidates}
    if is_untyped(kind):
        own = [name for name in known if name not in beside and name not in HIDDEN]
        if not known:
            raise ValueError(
                f"{origin}: column {candidates!r} ({_KEY}) holds no candidate, so nothing says "
                "what there is to know of one; name a file with candidates too, or write the "
                "column with its type, a list of structs (Parquet or Arrow)"
            )
        return pa.struct([(name, pa.null()) for name in own])
    fields = kind.value_type if is_list(kind) else None
    if fields is None or not pa.types.is_struct(fields):
        raise ValueError(
            f"{origin}: column {candidates!r} ({_KEY}) holds {kind}, expected a list of structs, "
            "one for each candidate; write it so (Parquet, Arrow or JSON lines), or set "
            "data.requests.column, where each row is a candidate"
        )
    for field in fields:
        if field.name in beside:
            raise ValueError(
                f"{origin}: column {field.name!r} is beside the candidates ({candidates!r}) and a "
                "field of them; rename one"
            )
    return fields


def is_untyped(kind: pa.DataType) -> bool:
    """Returns whether lists of candidates have no type, as where all of them are empty."""
    return pa.types.is_null(kind) or (is_list(kind) and pa.types.is_null(kind.value_type))


def flat_schema(
    schema: pa.Schema, candidates: str, origin: str, known: Collection[str] = ()
) -> pa.Schema:
    """Returns the columns that rows of candidates have: those beside them, then their fields.

    Those beside them are dictionaries: their values, and which one each row has.

    Raises:
        ValueError: As `candidate_fields`.

    Example:
        >>> items = pa.list_(pa.struct([("price", pa.float64())]))
        >>> flat_schema(pa.schema([("age", pa.int64()), ("items", items)]), "items", "log").names
        ['age', 'price']
    """
    fields = candidate_fields(schema, candidates, origin, known)
    shared = [
        field.with_type(pa.dictionary(pa.int32(), plain_type(field.type)))
        for field in schema
        if field.name != candidates
    ]
    own = [pa.field(field.name, plain_type(field.type)) for field in fields]
    return pa.schema([*shared, *own])


def fields_among(
    names: Sequence[str],
    schema: pa.Schema,
    candidates: str,
    origin: str,
    known: Collection[str] = (),
) -> list[str]:
    """Returns which of these columns are fields of the candidates.

    Raises:
        ValueError: One is neither that nor beside them.
    """
    fields = candidate_fields(schema, candidates, origin, known)
    if is_untyped(schema.field(candidates).type):
        return []  # nothing of them can be read
    own = {field.name for field in fields}
    there = {*own, *HIDDEN, *schema.names}
    for name in names:
        if name not in there:
            raise MissingColumnError(name, flat_schema(schema, candidates, origin).names, origin)
    return [name for name in names if name in own]


def unnested(
    table: pa.Table,
    candidates: str,
    names: Sequence[str],
    origin: str,
    first: int = 0,
    *,
    whole: bool = False,
) -> pa.Table:
    """Returns a row for each candidate.

    Columns beside the candidates become dictionaries: a request's value is there once, whatever
    rows are filtered or taken, until it is decoded.

    Args:
        table: Rows that are requests, with plain columns.
        candidates: The column with their lists.
        names: Of the columns asked for, in order; hidden ones are left out. Of lists without a type
            those that are not beside them have the type null.
        origin: Starts error messages.
        first: Number of the first request.
        whole: These are all rows of a file: `requests_of` says how many.

    Returns:
        The columns, and hidden ones with the numbers of the request and of the candidate in it.

    Raises:
        ValueError: A candidate is null.

    Example:
        >>> table = pa.table({"age": [30, 40], "items": [[{"id": 1}, {"id": 2}], [{"id": 3}]]})
        >>> rows = unnested(table, "items", ["id", "age"], "log")
        >>> rows["id"].to_pylist(), rows["age"].to_pylist(), rows["__mmoe_request__"].to_pylist()
        ([1, 2, 3], [30, 30, 40], [0, 0, 1])
    """
    lists = one_chunk(plain(table[candidates]))
    if pa.types.is_null(lists.type):
        lists = lists.cast(pa.list_(pa.null()))
    lengths = list_lengths(lists)
    requests_N = np.repeat(np.arange(len(lengths)), lengths)
    places_N = np.arange(len(requests_N)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    items = lists.flatten()
    if items.null_count:
        at = int(pc.is_null(items).to_numpy(zero_copy_only=False).argmax())
        raise ValueError(
            f"{origin}: row {requests_N[at] + first + 1}, candidate {places_N[at] + 1} (in column "
            f"{candidates!r}) is null; leave it out of the list, or write what it is"
        )
    columns = _columns(table, items, names, requests_N)
    columns[ROW_COLUMN] = pa.array(places_N)
    columns[REQUEST_COLUMN] = pa.array(requests_N + first)
    metadata = dict(table.schema.metadata or {})
    if whole:
        metadata[_REQUESTS] = str(table.num_rows).encode()
    return pa.table(columns, metadata=metadata)


def _columns(
    table: pa.Table, items: pa.Array, names: Sequence[str], requests_N: np.ndarray
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Fields of the candidates, and columns beside them: which of its values each row has."""
    own = items.type if pa.types.is_struct(items.type) else ()
    fields = dict(zip((field.name for field in own), items.flatten() if own else (), strict=True))
    shared_N = pa.array(requests_N, pa.int32())
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    beside = set(table.column_names)
    for name in names:
        if name in fields:
            columns[name] = plain(pa.chunked_array([fields[name]]))
        elif name not in HIDDEN and name not in beside:
            columns[name] = pa.nulls(len(items))
        elif name not in HIDDEN:
            values = one_chunk(plain(table[name]))
            columns[name] = pa.DictionaryArray.from_arrays(shared_N, values)
    return columns


def nested(
    table: pa.Table, request: str, shared: Sequence[str] = (), candidates: str = "candidates"
) -> pa.Table:
    """Returns a row for each request of a log that has one for each candidate.

    Requests stand in the order in which they come first, and candidates in theirs.

    Args:
        table: A row for each candidate.
        request: The column that says of which request it is.
        shared: Columns whose value the request's first row has; the others are of candidates.
        candidates: What the column with their lists is called.

    Example:
        >>> log = pa.table({"q": [7, 7, 8], "age": [30, 30, 40], "id": [1, 2, 3]})
        >>> nested(log, "q", ["age"])["candidates"].to_pylist()
        [[{'id': 1}, {'id': 2}], [{'id': 3}]]
    """
    codes_N, count = codes_of(table[request])
    order_N = np.argsort(codes_N, kind="stable")
    ends = np.cumsum(np.bincount(codes_N, minlength=count))
    sorted_rows = table.take(pa.array(order_N)).combine_chunks()
    beside = [request, *(name for name in shared if name != request)]
    own = [name for name in table.column_names if name not in beside]
    structs = pa.StructArray.from_arrays(
        [one_chunk(sorted_rows[name]) for name in own],
        fields=[table.schema.field(name) for name in own],
    )
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    firsts = sorted_rows.select(beside).take(pa.array(np.concatenate([[0], ends[:-1]])))
    return firsts.append_column(candidates, pa.ListArray.from_arrays(offsets, structs))


def requests_of(table: pa.Table) -> int | None:
    """Returns how many requests a whole file has, where its rows are candidates."""
    found = (table.schema.metadata or {}).get(_REQUESTS)
    return None if found is None else int(found)


def renumbered(table: pa.Table, first: int) -> pa.Table:
    """Returns rows of candidates whose requests are counted from another number on."""
    if not first:
        return table
    at = table.column_names.index(REQUEST_COLUMN)
    return table.set_column(at, REQUEST_COLUMN, pc.add(table[REQUEST_COLUMN], first))
