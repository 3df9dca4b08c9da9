"""What is wrong in JSON lines, by line: Arrow says it of the row of a block, or not at all."""

import json
import shlex
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.values.arrow import is_list, is_text

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
    """Returns the refusal of the column of which Arrow says that its types change within objects.

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
    return b"\n".join(_without(line, columns) for line in block.split(b"\n"))


def _without(line: bytes, columns: Collection[str]) -> bytes:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(row, dict):
        return line
    return json.dumps({key: value for key, value in row.items() if key not in columns}).encode()


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
    """Whether no type holds both; what is null or empty fits all, an empty list all lists."""
    while one.startswith("lists of ") and two.startswith("lists of "):
        one, two = one.removeprefix("lists of "), two.removeprefix("lists of ")
    return one != two and "nothing" not in (one, two)


def _kind(value: Any) -> str:
    """What a value is, in words that name what it fits."""
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
