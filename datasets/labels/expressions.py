"""Label expressions such as `watch_ms / duration_ms >= 0.9`, on whole columns, without `eval`."""

import ast
import keyword
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.datasets.rows.locations import find_column, first_true, place
from mmoe.datasets.values.arrow import is_text, pc
from mmoe.datasets.values.columns import numbers_of, parse_amounts, to_numbers
from mmoe.datasets.values.text import blank_to_null, empty_to_null

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
    tree, columns = parse(expression)
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


_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    name: getattr(np, name)
    for name in ("abs", "ceil", "exp", "floor", "log", "log1p", "round", "sqrt")
}
_ARITHMETIC: dict[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
}
_COMPARE: dict[type, str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}


@dataclass(frozen=True)
class Values:
    """A column or constant within an expression: numbers and flags in NumPy, text in Arrow."""

    data: Any  # float64, int64 or bool [N] or []; for text a ChunkedArray [N] or a str
    missing: np.ndarray  # bool [N] or []
    source: str | None = None  # the column it is, if it is one; for error messages

    @property
    def is_text(self) -> bool:
        """Whether it is text (a column or a constant)."""
        return isinstance(self.data, str | pa.ChunkedArray)

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return not self.is_text and self.data.dtype == bool


def evaluate(expression: str, table: pa.Table, origin: str, used_by: str) -> Values:
    """Evaluates an expression for each row.

    A row is missing where any operand is missing, and where arithmetic has no finite result
    (division by zero, logarithm of zero). Only columns, constants, + - * / // % **, comparisons,
    in, and, or, not, is_missing(), number() and a few functions are known; nothing else can be run.

    Args:
        expression: The text.
        table: N rows.
        origin: Starts error messages.
        used_by: Who asks, such as "task 'finish'".

    Returns:
        Values of N rows, data as bool, int64 or float64 (0 where missing), or text.

    Raises:
        ValueError: It cannot be parsed, names no column, or mixes text with numbers.

    Example:
        >>> table = pa.table({"seen": [9, 5, 7], "length": [10, 10, 0]})
        >>> values = evaluate("seen / length >= 0.9", table, "log.csv", "task 'finish'")
        >>> values.data.tolist(), values.missing.tolist()
        ([True, False, False], [False, False, True])
    """
    tree, columns = parse(expression)
    evaluator = _Evaluator(table, columns, origin, used_by, expression)
    try:
        values = evaluator.visit(tree)
    except RecursionError:
        raise evaluator.error(
            "it is nested too deeply; take out brackets or operators, or compute it as a column "
            "of the log"
        ) from None
    shape = (table.num_rows,)
    # A copy: the rows of a broadcast constant are one number in memory
    missing = np.broadcast_to(values.missing, shape).copy()
    if isinstance(values.data, str):
        raise evaluator.error(f"it is the constant {values.data!r}; name a column")
    if values.is_text:
        return Values(values.data, missing, values.source)
    data = np.broadcast_to(values.data, shape).copy()
    data[missing] = 0
    return Values(data, missing, values.source)


def evaluate_label(text: str, table: pa.Table, origin: str, used_by: str) -> Values:
    """Evaluates a label: a column of exactly that name, or else an expression."""
    values = evaluate(quote(text) if text in table.column_names else text, table, origin, used_by)
    if not values.is_text or values.source is None:
        return values
    try:
        numbers_N = to_numbers(table, values.source, origin, used_by)
    except ValueError:
        return values  # words: whoever wants numbers says so with the first of them
    return Values(np.nan_to_num(numbers_N), np.isnan(numbers_N), values.source)


@dataclass(frozen=True)
class _Evaluator:
    """Walks the tree; a node that is not listed here is refused."""

    table: pa.Table
    columns: dict[str, str]
    origin: str
    used_by: str
    expression: str

    def error(self, problem: str) -> ValueError:
        """An error that names the expression and who uses it."""
        return ValueError(f"{self.origin}: {self.used_by}, {shown(self.expression)}: {problem}")

    def visit(self, node: ast.expr) -> Values:
        """Evaluates one node."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.error(
                f"{shown(self._written(node))} is not allowed; use columns, numbers, text, "
                "arithmetic, comparisons, in, and, or, not"
            )
        return method(node)

    def _written(self, node: ast.expr) -> str:
        """A part of the expression as the user wrote it."""
        text = ast.unparse(node)
        for name, column in self.columns.items():
            text = text if name == column else text.replace(name, quote(column))
        return text

    def _name(self, node: ast.Name) -> Values:
        name = self.columns[node.id]
        column = find_column(self.table, name, self.origin, self.used_by)
        if is_text(column.type):
            text = empty_to_null(column)
            return Values(text, pc.is_null(text).to_numpy(), name)
        missing = pc.is_null(column, nan_is_null=True).to_numpy()
        if pa.types.is_boolean(column.type):
            return Values(pc.fill_null(column, False).to_numpy(), missing, name)
        if pa.types.is_integer(column.type) and column.type != pa.uint64():
            # Integers stay integers, so that ids beyond 2⁵³ compare exactly.
            return Values(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), missing, name)
        numbers = numbers_of(column)
        if numbers is None:
            raise self.error(f"column {name!r} holds {column.type}, expected numbers or text")
        return Values(numbers, missing, name)

    def _constant(self, node: ast.Constant) -> Values:
        value = node.value
        if isinstance(value, str):
            return Values(value, np.array(False))
        if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
            return Values(np.array(value, np.int64), np.array(False))
        if isinstance(value, bool):
            return Values(np.array(value), np.array(False))
        if isinstance(value, int | float):
            # What float64 has no room for is infinite, as 1e400 is: any number compares right
            beyond = value > sys.float_info.max
            return Values(np.array(np.inf if beyond else float(value)), np.array(False))
        raise self.error(f"{value!r} is not allowed; use numbers and text")

    def _boolop(self, node: ast.BoolOp) -> Values:
        parts = [self._flag(part) for part in node.values]
        combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        data, missing = parts[0].data, parts[0].missing
        for part in parts[1:]:
            data, missing = combine(data, part.data), missing | part.missing
        return Values(data, missing)

    def _unaryop(self, node: ast.UnaryOp) -> Values:
        if isinstance(node.op, ast.Not | ast.Invert):
            value = self._flag(node.operand)
            return Values(~value.data, value.missing)
        value = self._number(node.operand)
        data = value.data.astype(np.int64) if value.is_flag else value.data
        return Values(-data if isinstance(node.op, ast.USub) else data, value.missing)

    def _binop(self, node: ast.BinOp) -> Values:
        """Sums of many terms are trees as deep as they have terms: walked in a loop."""
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        value = self.visit(chain[-1].left)
        for link in reversed(chain):
            right = self.visit(link.right)
            is_bit = isinstance(link.op, ast.BitAnd | ast.BitOr)
            value = (self._bit_op if is_bit else self._arithmetic)(link.op, value, right)
        return value

    def _arithmetic(self, operator: ast.operator, left: Values, right: Values) -> Values:
        if type(operator) not in _ARITHMETIC:
            raise self.error("only + - * / // % ** are known")
        left, right = self._as_number(left), self._as_number(right)
        with np.errstate(all="ignore"):
            floats = (left.data.astype(np.float64), right.data.astype(np.float64))
            data = _ARITHMETIC[type(operator)](*floats)
        return _finite(data, left.missing | right.missing)

    def _bit_op(self, operator: ast.operator, left: Values, right: Values) -> Values:
        """& and | of pandas: only between comparisons, since they bind tighter than `>`."""
        if not (left.is_flag and right.is_flag):
            raise self.error(
                "& and | join comparisons in brackets: (a > 1) & (b < 2); or write a > 1 and b < 2"
            )
        combine = np.logical_and if isinstance(operator, ast.BitAnd) else np.logical_or
        return Values(combine(left.data, right.data), left.missing | right.missing)

    def _compare(self, node: ast.Compare) -> Values:
        left, data, missing = self.visit(node.left), np.array(True), np.array(False)
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                if not isinstance(right_node, ast.List | ast.Tuple | ast.Set):
                    raise self.error("`in` needs a list of constants: country in ('de', 'fr')")
                found = np.array(False)
                for item in right_node.elts:
                    found = found | self._compare_pair("equal", left, self.visit(item)).data
                result = ~found if isinstance(operator, ast.NotIn) else found
                step, right = Values(result, left.missing), left
            elif type(operator) in _COMPARE:
                right = self.visit(right_node)
                step = self._compare_pair(_COMPARE[type(operator)], left, right)
            else:
                raise self.error("write == instead of `is`, and is_missing(column) for empty cells")
            data, missing, left = data & step.data, missing | step.missing, right
        return Values(data, missing)

    def _compare_pair(self, operator: str, left: Values, right: Values) -> Values:
        missing = left.missing | right.missing
        if left.is_text and right.is_text:
            if isinstance(left.data, str) and isinstance(right.data, str):
                raise self.error("it compares two constants; name a column")
            texts = (
                pa.scalar(data, pa.large_string()) if isinstance(data, str) else data
                for data in (left.data, right.data)
            )
            result = getattr(pc, operator)(*texts)
            return Values(pc.fill_null(result, False).to_numpy(), missing)
        left, right = self._as_number(left), self._as_number(right)
        result = getattr(np, operator)(left.data, right.data)
        return Values(result, missing | left.missing | right.missing)

    def _call(self, node: ast.Call) -> Values:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "number" and len(node.args) in (1, 2) and not node.keywords:
            return self._amount(*node.args)
        if len(node.args) != 1 or node.keywords or name not in {*_FUNCTIONS, "is_missing"}:
            known = ", ".join(sorted([*_FUNCTIONS, "is_missing", "number"]))
            raise self.error(
                f"{shown(self._written(node))} is not allowed; functions, of one value: {known}"
            )
        if name == "is_missing":
            missing = self.visit(node.args[0]).missing
            return Values(missing, np.zeros_like(missing))
        value = self._number(node.args[0])
        with np.errstate(all="ignore"):
            return _finite(_FUNCTIONS[name](value.data.astype(np.float64)), value.missing)

    def _amount(self, column: ast.expr, mark: ast.expr | None = None) -> Values:
        """Numbers as people write them: $1,234.50, 12 %, 1.2k; with ',' 1.234,50 €."""
        decimal = mark.value if isinstance(mark, ast.Constant) else "."
        if decimal not in (".", ",") or (mark is not None and not isinstance(mark, ast.Constant)):
            raise self.error("the second argument of number is the mark of decimals, '.' or ','")
        value = self.visit(column)
        if not isinstance(value.data, pa.ChunkedArray):
            return self._as_number(value)
        numbers = parse_amounts(value.data, decimal)
        present = blank_to_null(value.data)
        missing = pc.is_null(present).to_numpy()
        if (index := first_true(pc.is_null(numbers).to_numpy() & ~missing)) is not None:
            example = "$1,234.50" if decimal == "." else "1.234,50 €"
            raise ValueError(
                f"{place(self.table, self.origin, index)}: column {value.source!r} is "
                f"{value.data[index].as_py()!r}, expected a number such as {example!r}, since "
                f"{self.used_by} is {shown(self.expression)}; mend the cell, or leave it empty"
            )
        return Values(pc.fill_null(numbers, 0.0).to_numpy(), missing, value.source)

    def _number(self, node: ast.expr) -> Values:
        return self._as_number(self.visit(node))

    def _as_number(self, value: Values) -> Values:
        """Text becomes numbers where all of it is numbers; a word is an error."""
        if not value.is_text:
            return value
        if isinstance(value.data, str):
            number = numbers_of(pa.chunked_array([[value.data]], pa.large_string()))
            if number is None or np.isnan(number[0]):
                raise self.error(f"{value.data!r} is text, but is used as a number")
            return Values(np.array(number[0]), np.array(False))
        numbers = numbers_of(value.data)
        assert numbers is not None
        word = np.isnan(numbers) & pc.is_valid(blank_to_null(value.data)).to_numpy()
        if (index := first_true(word)) is not None:
            raise ValueError(
                f"{place(self.table, self.origin, index)}: column {value.source!r} is "
                f"{value.data[index].as_py()!r}, but {self.used_by} uses it as a number in "
                f"{shown(self.expression)}; compare it with text: {value.source} == '...'"
            )
        return Values(numbers, value.missing | np.isnan(numbers), value.source)

    def _flag(self, node: ast.expr) -> Values:
        """0 and 1 are taken as false and true; any other number is an error."""
        value = self._number(node)
        if value.is_flag:
            return value
        other = ~np.isin(value.data, (0, 1)) & ~value.missing
        if other.any():
            came = np.broadcast_to(value.data, other.shape)[other][0]
            written = self._written(node)
            raise self.error(
                f"{shown(written)} is {came:g}, but and, or, not need true or false; "
                f"compare it, such as {shown(written)[1:-1]} > 0"
            )
        return Values(value.data == 1, value.missing, value.source)


def _finite(data: np.ndarray, missing: np.ndarray) -> Values:
    return Values(data, missing | ~np.isfinite(data))
