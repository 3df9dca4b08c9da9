"""Parses a label expression: its syntax tree and the columns it names."""

import ast
import keyword
import re
from functools import cache

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`((?:[^`]|``)+)`")
_PLACEHOLDER = "__column_{}__"
_SHOWN = 200  # characters, in a message
_LONGEST = 10_000  # characters; nesting deeper than Python's parser takes is refused by it


def parse(expression: str) -> tuple[ast.expr, dict[str, str]]:
    """Parses an expression: its tree, and the columns it names, Python name → column.

    Columns that are no Python names stand in backticks: `` `watch ms` > 3 ``; a backtick in a name
    is doubled.

    Raises:
        ValueError: It is no expression.
    """
    quoted: dict[str, str] = {}

    def _replace(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group(0)
        name = _PLACEHOLDER.format(len(quoted))
        quoted[name] = match.group(1).replace("``", "`")
        return f" {name} "

    try:
        if len(expression) > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} characters")
        tree = ast.parse(_QUOTED.sub(_replace, expression).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error)
        # Python has no class of its own for it
        reason = "a number has too many digits" if "digits)" in reason else reason
        raise ValueError(
            f"{shown(expression)} is no column and no expression ({reason}); write a column's "
            "name, or such as watch_ms / duration_ms >= 0.9; names with spaces stand in `backticks`"
        ) from None
    # Names of functions are no columns
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
    ]
    return tree, {name: quoted.get(name, name) for name in dict.fromkeys(names)}


def shown(expression: str) -> str:
    """Returns the expression in quotes as a message shows it: the start of a long one.

    Example:
        >>> shown("click"), len(shown("1 + " * 1000))
        ("'click'", 202)
    """
    return repr(expression if len(expression) <= _SHOWN else f"{expression[: _SHOWN - 1]}…")


def columns_of(expression: str) -> list[str]:
    """Lists the columns that an expression reads, in order of first use.

    Example:
        >>> columns_of("`watch ms` / duration >= 0.9 and kind in ('ad', 'post')")
        ['watch ms', 'duration', 'kind']
    """
    return _sorted_by_use(parse(expression))


def _sorted_by_use(parsed: tuple[ast.expr, dict[str, str]]) -> list[str]:
    """Sorts column names in the order in which they stand in the text."""
    tree, columns = parsed
    uses = [
        (node.lineno, node.col_offset, columns[node.id])
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in columns
    ]
    return list(dict.fromkeys(column for _, _, column in sorted(uses)))


@cache
def texts_of(expression: str) -> tuple[str, ...]:
    """Lists the texts that an expression compares with.

    Example:
        >>> texts_of("kind in ('ad', 'post') or x > 3")
        ('ad', 'post')
    """
    tree, _ = parse(expression)
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return tuple(value for value in constants if isinstance(value, str))


def quote(column: str) -> str:
    """Writes a column as an expression does: in backticks unless it is a plain Python name.

    Example:
        >>> quote("click"), quote("watch ms"), quote("class")
        ('click', '`watch ms`', '`class`')
    """
    plain = column.isascii() and column.isidentifier() and not keyword.iskeyword(column)
    return column if plain else "`" + column.replace("`", "``") + "`"
