"""JSON lines on pyarrow: an object on each line, keys are columns; what is wrong is said by line.

Blocks of whole lines are parsed one by one, first to find the types of all, then as these types:
Arrow's own reader of streams fixes them by the first block, and has no columns that begin later.
"""

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.text_files import one_line, open_text, read_start, unreadable
from mmoe.datasets.rows.locations import MissingColumnError
from mmoe.datasets.values.arrow import (
    ANY_INTEGER,
    MOST_DEPTH,
    is_list,
    is_text,
    out_of_memory,
    pc,
    widen,
)

_ONE_TYPE = "write the column with one type"
_SHOWN = 60  # characters of a line


class MixedColumnError(ValueError):
    """Refusal of a column whose values no type holds; the others can be read without it."""

    def __init__(self, column: str, where: str, what: str, mend: str = _ONE_TYPE) -> None:
        leave = f"leave it out (mmoe init: --drop {shlex.quote(column)})"
        super().__init__(f"{where}: column {column!r} holds {what}; {mend}, or {leave}")
        self.column = column


def explain_line(
    file: DataFile, first: int, block: bytes, before: Mapping[str, pa.DataType] | None = None
) -> ValueError | None:
    """Returns the refusal of the first line that is wrong, or None where each is right.

    Args:
        file: Whose lines they are.
        first: Number of the block's first line.
        block: Whole lines.
        before: Types of the columns in the lines above.
    """
    kinds = {name: _kind_of_type(kind) for name, kind in (before or {}).items()}
    for number, line in enumerate(block.split(b"\n"), start=first):
        if not line.strip():
            continue
        where = f"{file}: line {number}"
        try:
            row = json.loads(line.decode("utf-8"), object_pairs_hook=_distinct)
        except UnicodeDecodeError:
            return ValueError(f"{where} is not UTF-8 text; convert the file, such as with iconv")
        except RecursionError:
            return ValueError(f"{where} is nested too deeply; mend the line")
        except ValueError as error:
            return ValueError(f"{where} is no JSON object ({_reason(error, line)}); mend the line")
        if not isinstance(row, dict):
            return ValueError(
                f"{where} holds {_words(row)}, expected an object such as "
                '{"user": 17, "click": 1}; mend the line'
            )
        for name, value in row.items():
            kind = _kind(value)
            known = kinds.setdefault(name, kind)
            if " and " in kind:
                return MixedColumnError(name, where, kind, "write all items with one type")
            if _differ(known, kind):
                what = f"{kind}, but {known} in the lines before"
                return MixedColumnError(name, where, what)
            kinds[name] = kind if "nothing" in known else known
    return None


def explain_types(file: DataFile, first: int, block: bytes, said: str) -> ValueError | None:
    """Returns the refusal of a column whose types change within objects, as Arrow says.

    Args:
        file: Whose lines they are.
        first: Number of the block's first line.
        block: Whole lines, each an object.
        said: By Arrow.
    """
    if "Column(/" not in said:
        return None
    names = {name for line in block.split(b"\n") if line.strip() for name in json.loads(line)}
    named = [name for name in names if f"Column(/{name}/" in said or f"Column(/{name})" in said]
    if not named:
        return None
    what = f"more than one type, from line {first} on ({said})"
    return MixedColumnError(max(named, key=len), str(file), what)


def without_columns(block: bytes, columns: Collection[str]) -> bytes:
    """Returns the same lines without some keys; a line that is no object stays as it is."""
    if not columns:
        return block
    lines = block.split(b"\n")
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            kept = {key: value for key, value in row.items() if key not in columns}
            lines[number] = json.dumps(kept).encode()
    return b"\n".join(lines)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} comes twice")
    return row


def _reason(error: ValueError, line: bytes) -> str:
    start = line.strip()[:_SHOWN].decode("utf-8", errors="replace")
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1} of {start!r}"
    return str(error)


def _differ(one: str, two: str) -> bool:
    """Whether no type holds both; null and empty fit all, an empty list all lists."""
    while one.startswith("lists of ") and two.startswith("lists of "):
        one, two = one.removeprefix("lists of "), two.removeprefix("lists of ")
    return one != two and "nothing" not in (one, two)


def _kind(value: Any) -> str:
    """Describes a value's kind in words."""
    if isinstance(value, list):
        kinds = [kind for kind in map(_kind, value) if kind != "nothing"]
        mixed = next((kind for kind in kinds if _differ(kinds[0], kind)), None)
        item = f"{kinds[0]} and {mixed}" if mixed else (kinds or ["nothing"])[0]
        return f"lists of {item}"
    return _words(value)


def _words(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "booleans"
    if isinstance(value, int | float):
        return "numbers"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "objects"


def _kind_of_type(kind: pa.DataType) -> str:
    if is_list(kind):
        return f"lists of {_kind_of_type(kind.value_type)}"
    if pa.types.is_null(kind):
        return "nothing"
    if pa.types.is_boolean(kind):
        return "booleans"
    if pa.types.is_struct(kind):
        return "objects"
    return "text" if is_text(kind) else "numbers"


_BLOCK_BYTES = 8 << 20  # and as many more as the line takes that does not end there
_LINE_BYTES = 16 << 20
_KEY = re.compile(rb'"([^"]*)"[ \t\r\n]*:')
# Arrow's work grows with lines times keys: many keys of which a line has few are no columns
_MANY_KEYS, _FEW_OF_THEM = 1_000, 50
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 1 << 14
_EXACT = 2.0**53  # whole numbers below are exact in float64


def json_schema(file: DataFile) -> pa.Schema:
    """Returns the columns and their types, which hold every value of the file.

    A column that no type holds, such as text beside numbers, has the type null, and comes last: it
    is refused where it is read.

    Raises:
        ValueError: The file is empty or cannot be read, or a line is no JSON object; names file and
            line.
    """
    return _keys_of(file).schema


def iter_json(file: DataFile, columns: list[str], rows: int) -> Iterator[pa.Table]:
    """Yields the same rows in the same order, at most `rows` at a time; holds a block.

    Args:
        file: The file.
        columns: Only these, in this order.
        rows: Most rows of one table.
    """
    found = _keys_of(file)
    names = found.schema.names
    there = set(names)
    for column in columns:
        if column not in there:
            raise MissingColumnError(column, names, str(file))
        if column in found.faults:
            raise ValueError(found.faults[column])
    # Of no column one of the file is read, to have rows
    schema = pa.schema([found.schema.field(column) for column in columns or names[:1]])
    for line, block in _blocks(file):
        table = _parse(file, line, block, schema)
        for start in range(0, table.num_rows, rows):
            yield table.slice(start, rows).select(columns)


class _KeyTypes(NamedTuple):
    """Types of a file's keys, found by a pass over its lines."""

    schema: pa.Schema  # types of the columns
    faults: Mapping[str, str]  # what is wrong with those that have none


def _keys_of(file: DataFile) -> _KeyTypes:
    return _look_at(DataFile(file.address), file.state())


@lru_cache(maxsize=1024)
def _look_at(file: DataFile, state: object) -> _KeyTypes:
    """Looks at the file as it is: a file written anew is in another state."""
    kinds: dict[str, pa.DataType] = {}
    faults: dict[str, str] = {}
    keys = _Keys(file)
    for line, block in _blocks(file):
        keys.add(line, block)
        while True:  # a column that no type holds is left out of what is looked at
            try:
                found = _joined_kinds(file, line, without_columns(block, faults), kinds)
                break
            except MixedColumnError as error:
                if error.column in faults:  # it goes by another name
                    raise
                faults[error.column] = str(error)
        kinds |= found
    if not kinds and not faults:
        raise ValueError(f"{file}: is empty; expected a JSON object on each line")
    whole = [(name, kind) for name, kind in kinds.items() if name not in faults]
    schema = pa.schema([*whole, *((name, pa.null()) for name in faults)])
    return _KeyTypes(schema, faults)


class _Keys:
    """Counts different keys, those of objects within objects too, and refuses too many of them."""

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self._all: set[bytes] = set()
        self._pairs = self._lines = 0

    def add(self, line: int, block: bytes) -> None:
        """Counts those of a block of whole lines; `line` is the number of the first one."""
        found = _KEY.findall(_without_escapes(block))
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        mine = set(found)
        self._all |= mine
        self._pairs += len(found)
        self._lines += lines
        of_all = (len(self._all), self._pairs, self._lines)
        for keys, pairs, among in (of_all, (len(mine), len(found), lines)):
            if keys > _MANY_KEYS and pairs * _FEW_OF_THEM < keys * among:
                last = line + lines - 1
                raise ValueError(
                    f"{self._file}: has {keys:,} different keys in {among:,} lines up to line "
                    f"{last:,}, and a line has {pairs / among:.1f} of them on average, expected "
                    f"keys that are columns (more than {_MANY_KEYS:,} where a line has at least "
                    f"1 in {_FEW_OF_THEM}); write what the keys name as values, such as "
                    '{"names": ["k7", "k9"], "values": [1, 2]} for {"k7": 1, "k9": 2}'
                )


def _joined_kinds(
    file: DataFile, line: int, block: bytes, before: Mapping[str, pa.DataType]
) -> dict[str, pa.DataType]:
    kinds = {}
    found = _parse(file, line, block, None)
    whole = _kept_digits(block, found)
    for name in found.column_names:
        kind, known = whole[name], before.get(name, pa.null())
        joined = widen(known, kind)
        if joined is None:
            what = f"{kind} from line {line} on, but {known} before"
            raise explain_line(file, line, block, before) or MixedColumnError(name, str(file), what)
        kinds[name] = joined
    return kinds


def _blocks(file: DataFile) -> Iterator[tuple[int, bytes]]:
    """Whole lines, some megabytes of them at a time: the number of the first, bytes."""
    _refuse_array(file)
    line, rest, is_start = 1, b"", True
    try:
        with open_text(file) as stream:
            while data := stream.read(_BLOCK_BYTES):
                data = rest + (data.removeprefix(_BOM) if is_start else data)
                is_start = False
                end = data.rfind(b"\n") + 1
                block, rest = data[:end], data[end:]
                after = line + block.count(b"\n")
                if len(rest) > _LINE_BYTES:
                    raise ValueError(
                        f"{file}: line {after} has more than {_LINE_BYTES >> 20} MiB, expected a "
                        "JSON object of one row on each line; write one line for each row"
                    )
                if block.strip():
                    _refuse_deep(file, line, block)
                    yield line, block
                line = after
    except (pa.ArrowException, OSError, EOFError) as error:
        raise out_of_memory(error, str(file)) or unreadable(file, error) from None
    if rest.strip():
        _refuse_deep(file, line, rest)
        yield line, rest


def _without_escapes(block: bytes) -> bytes:
    """Blanks what a backslash escapes, so that quotes left are those of keys and texts."""
    return re.sub(rb"\\.", b"  ", block) if b"\\" in block else block


def _refuse_deep(file: DataFile, line: int, block: bytes) -> None:
    """Refuses lines nested deeper than any data, before a parser goes down into them."""
    bytes_N = np.frombuffer(_without_escapes(block), np.uint8)
    quoted_N = np.bitwise_xor.accumulate(bytes_N == ord('"'))
    opens_N = (bytes_N == ord("[")) | (bytes_N == ord("{"))
    closes_N = (bytes_N == ord("]")) | (bytes_N == ord("}"))
    steps_N = (opens_N.view(np.int8) - closes_N.view(np.int8)) * ~quoted_N
    depth_N = np.cumsum(steps_N, dtype=np.int32)
    if depth_N.max(initial=0) <= MOST_DEPTH:
        return
    line += block.count(b"\n", 0, int((depth_N > MOST_DEPTH).argmax()))
    raise ValueError(
        f"{file}: line {line} is nested more than {MOST_DEPTH} levels "
        "deep, expected columns of numbers, text and lists of them; mend the line, or leave that "
        "out of it"
    )


def _refuse_array(file: DataFile) -> None:
    """Refuses one array of objects, which has to be parsed whole."""
    if read_start(file, 1 << 12).removeprefix(_BOM).lstrip().startswith(b"["):
        raise ValueError(
            f"{file}: holds one JSON array, expected a JSON object on each line; write it so, such "
            f"as with jq -c '.[]' {file.name} > {file.name.split('.')[0]}-lines.jsonl"
        )


def _parse(file: DataFile, line: int, block: bytes, schema: pa.Schema | None) -> pa.Table:
    """The rows of a block; with a schema as its types, its columns alone."""
    try:
        if schema is None:
            block.decode("utf-8")  # Arrow does not look
        return _arrow_table(block, schema)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise (
            out_of_memory(error, str(file))
            or explain_line(file, line, block)
            or explain_types(file, line, block, one_line(error))
            or ValueError(
                f"{file}: cannot be read as JSON lines, from line {line} on ({one_line(error)}); "
                "mend or copy the file again"
            )
        ) from None


def _arrow_table(block: bytes, schema: pa.Schema | None) -> pa.Table:
    others = "infer" if schema is None else "ignore"
    asked = None if schema is None else pa.schema([(f.name, _told(f.type)) for f in schema])
    table = pajson.read_json(
        pa.BufferReader(block),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pajson.ParseOptions(explicit_schema=asked, unexpected_field_behavior=others),
    )
    if schema is None or asked is None or asked == schema:
        return table
    columns = {
        name: table[name]
        if told == kind
        else pa.chunked_array([_without_type(chunk, kind) for chunk in table[name].chunks], kind)
        for name, told, kind in zip(schema.names, asked.types, schema.types, strict=True)
    }
    return pa.table(columns)


def _told(kind: pa.DataType, *, in_list: bool = False) -> pa.DataType:
    """Returns the types to read: Arrow makes too few of lists of nulls, unless of text."""
    if is_list(kind):
        return pa.list_(_told(kind.value_type, in_list=True))
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_told(f.type, in_list=in_list)) for f in kind])
    return pa.large_string() if in_list and pa.types.is_null(kind) else kind


def _without_type(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Nulls that were read as text, inside lists and objects, as what they are."""
    if cells.type == kind:
        return cells
    if is_list(kind):
        items = _without_type(cells.values, kind.value_type)
        return pa.ListArray.from_arrays(cells.offsets, items, mask=cells.is_null())
    if pa.types.is_struct(kind):
        items = [_without_type(cells.field(n), field.type) for n, field in enumerate(kind)]
        return pa.StructArray.from_arrays(items, fields=list(kind), mask=cells.is_null())
    return pa.nulls(len(cells))


def _kept_digits(block: bytes, found: pa.Table) -> dict[str, pa.DataType]:
    """The columns' types; ids of more than 63 bits, which Arrow takes for floats, stay integers.

    The block is parsed once for all columns whose first lines allow it; where that fails, once for
    each.
    """
    kinds = {f.name: _plain_kind(f.type) for f in found.schema}
    tried = [(name, path) for name in kinds for path in _large_floats(found[name])]
    if not tried:
        return kinds
    head = block[: block.find(b"\n", _HEAD_BYTES) + 1] or block
    if len(head) < len(block):
        tried = [one for one in tried if _fit(head, _as_integers(kinds, [one]), [one])]
    whole = _as_integers(kinds, tried)
    if _fit(block, whole, tried):
        return whole
    for one in tried:
        whole = _as_integers(kinds, [one])
        kinds = whole if _fit(block, whole, [one]) else kinds
    return kinds


def _as_integers(
    kinds: Mapping[str, pa.DataType], places: Sequence[tuple[str, tuple[str, ...]]]
) -> dict[str, pa.DataType]:
    found = dict(kinds)
    for name, path in places:
        found[name] = _with_integer(found[name], path)
    return found


def _fit(
    block: bytes, kinds: Mapping[str, pa.DataType], places: Sequence[tuple[str, tuple[str, ...]]]
) -> bool:
    """Whether the columns of these places can be read as these types."""
    names = dict.fromkeys(name for name, _ in places)
    try:
        _arrow_table(block, pa.schema([(name, kinds[name]) for name in names]))
    except pa.ArrowInvalid:
        return False
    return True


def _large_floats(values: pa.ChunkedArray) -> Iterator[tuple[str, ...]]:
    """Paths of keys, through lists and objects, to floats that may be rounded integers."""
    while is_list(values.type):
        values = pc.list_flatten(values)
    if pa.types.is_struct(values.type):
        for field in values.type:
            if _has_floats(field.type):
                for path in _large_floats(pc.struct_field(values, field.name)):
                    yield field.name, *path
    elif _has_floats(values.type) and pc.any(pc.greater_equal(pc.abs(values), _EXACT)).as_py():
        yield ()


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_floats(field.type) for field in kind)
    return _has_floats(kind.value_type) if is_list(kind) else pa.types.is_floating(kind)


def _with_integer(kind: pa.DataType, path: Sequence[str]) -> pa.DataType:
    if is_list(kind):
        return pa.list_(_with_integer(kind.value_type, path))
    if not path:
        return ANY_INTEGER
    kinds = [_with_integer(f.type, path[1:]) if f.name == path[0] else f.type for f in kind]
    return pa.struct([f.with_type(changed) for f, changed in zip(kind, kinds, strict=True)])


def _plain_kind(kind: pa.DataType) -> pa.DataType:
    """Text stays text: Arrow takes what looks like a datetime for one."""
    if is_text(kind) or pa.types.is_temporal(kind):
        return pa.large_string()
    if is_list(kind):
        return pa.list_(_plain_kind(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_kind(field.type)) for field in kind])
    return kind
