import datetime
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmoe.config import config_from_dict
from mmoe.datasets.labels.expressions import columns_of, evaluate, quote
from mmoe.datasets.rows.projection import required_columns

TABLE = pa.table(
    {
        "a": [1, 2, None, 4],
        "b": [0.5, float("nan"), 2.0, 0.0],
        "flag": [True, False, None, True],
        "word": ["x", "y", "", "it's"],
        "digits": ["1", "2.5", "NA", "0"],
        "watch ms": [90, 10, 5, 0],
        "class": [1, 0, 1, 0],
        "id": [2**53 + 1, 2**53, 7, 8],
        "when": [datetime.datetime(1970, 1, 1, 0, 0, second) for second in range(4)],
        "kind": pa.array(["ad", "post", "ad", None]).dictionary_encode(),
    }
)
NONE = None
NAMES = ["a", "b", "flag", "word", "digits", "`watch ms`", "when", "kind", "tags"]


def run(expression):
    values = evaluate(expression, TABLE, "log.csv", "task 't'")
    return [
        None if missing else value
        for value, missing in zip(values.data.tolist(), values.missing.tolist(), strict=True)
    ]


@pytest.mark.parametrize(("expression", "expected"), [
    ("a >= 2", [False, True, NONE, True]),
    ("a + b", [1.5, NONE, NONE, 4.0]),
    ("a / b", [2.0, NONE, NONE, NONE]),
    ("a / b >= 1", [True, NONE, NONE, NONE]),
    ("-a", [-1, -2, NONE, -4]),
    ("-flag", [-1, 0, NONE, -1]),
    ("+flag", [1, 0, NONE, 1]),
    ("-(a > 1) + 1", [1.0, 0.0, NONE, 0.0]),
    ("--flag == flag", [True, True, NONE, True]),
    (f"a < {'9' * 4000}", [True, True, NONE, True]),
    (f"a + {'9' * 4000}", [NONE, NONE, NONE, NONE]),
    ("+".join(["a"] * 1200), [1200.0, 2400.0, NONE, 4800.0]),
    (" | ".join(["(a == 1)"] * 900), [True, False, NONE, False]),
    (" or ".join(["a == 1"] * 1000), [True, False, NONE, False]),
    ("2 ** a // 3 % 2", [0.0, 1.0, NONE, 1.0]),
    ("1 < a < 4", [False, True, NONE, False]),
    ("a == 1 or a == 4", [True, False, NONE, True]),
    ("a > 1 and b > 0", [False, NONE, NONE, False]),
    ("not flag", [False, True, NONE, False]),
    ("flag and a > 1", [False, False, NONE, True]),
    ("(a > 1) & ~flag", [False, True, NONE, False]),
    ("(a == 1) | flag", [True, False, NONE, True]),
    ("word == 'x'", [True, False, NONE, False]),
    ("word != \"it's\"", [True, True, NONE, False]),
    ("word in ('x', 'y')", [True, True, NONE, False]),
    ("word not in ['x']", [False, True, NONE, True]),
    ("word > 'x'", [False, True, NONE, False]),
    ("a in {1, 2}", [True, True, NONE, False]),
    ("digits >= 1", [True, True, NONE, False]),
    ("digits == '1'", [True, False, False, False]),
    ("`watch ms` / 100 >= 0.9", [True, False, False, False]),
    ("`class` == 1", [True, False, True, False]),
    ("word == '`class`'", [False, False, NONE, False]),
    ("id == 9007199254740993", [True, False, False, False]),
    ("id == 9007199254740992", [False, True, False, False]),
    ("log(b)", [pytest.approx(np.log(0.5)), NONE, pytest.approx(np.log(2)), NONE]),
    ("abs(-a) + round(1.4) + floor(0.5) + ceil(0.5) + sqrt(4)", [5.0, 6.0, NONE, 8.0]),
    ("log1p(exp(a) - 1)", [pytest.approx(1.0), pytest.approx(2.0), NONE, pytest.approx(4.0)]),
    ("is_missing(a)", [False, False, True, False]),
    ("is_missing(word) or a > 1", [False, True, NONE, True]),
    ("when >= 2", [False, False, True, True]),
    ("kind == 'ad'", [True, False, True, NONE]),
    ("a == True", [True, False, NONE, False]),
    ("flag == 1", [True, False, NONE, True]),
    ("a < 9 ** 9 ** 9", [NONE] * 4),
    ("a > 1e400", [False, False, NONE, False]),
    ("`watch ms`", [90, 10, 5, 0]),
])  # fmt: skip
def test_values(expression, expected):
    assert run(expression) == expected


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(-1000, 1000)), min_size=1, max_size=30),
    st.floats(-100, 100),
)
def test_like_python(rows, limit):
    x, n = (list(part) for part in zip(*rows, strict=True))
    table = pa.table({"x": x, "n": n})
    text = f"(x * 2 - n) / 3 > {limit!r} and not (n == 0 or x in (1, 2.5))"
    values = evaluate(text, table, "o", "t")
    expected = [
        (a * 2 - b) / 3 > limit and not (b == 0 or a in (1, 2.5)) for a, b in zip(x, n, strict=True)
    ]
    assert values.data.tolist() == expected
    assert not values.missing.any()


@pytest.mark.parametrize("expression", [
    "__import__('os').system('true')", "a.__class__", "a[0]", "(lambda: 1)()", "[x for x in a]",
    "f'{a}'", "a if flag else b", "(a := 3)", "open('x')", "log(a, 2)", "log(x=a)", "a is None",
    "a @ b", "a << 2", "None", "b'x'", "1j", "...", "a > 1 & b < 2", "a in word", "word + 'x'",
    "word * 1000000000", "'x' == 'x'", "'x'", "a and 2", "b and flag",
])  # fmt: skip
def test_anything_else_is_refused(expression):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        run(expression)
    assert "log.csv" in str(caught.value)
    assert "task 't'" in str(caught.value)


@pytest.mark.parametrize("expression", ["", "a >", "a b", "1 +", "(" * 500 + "a", "'open", "\x00"])
def test_what_is_no_expression(expression):
    with pytest.raises(ValueError, match="is no column and no expression"):
        run(expression)


@pytest.mark.parametrize(
    "expression", ["**".join(["a"] * 1200), "not " * 700 + "flag", "-" * 700 + "a"]
)
def test_what_is_nested_too_deeply_is_refused(expression):
    with pytest.raises(ValueError, match="nested too deeply; take out") as caught:
        run(expression)
    assert len(str(caught.value)) < 500


def test_messages_show_the_start_of_a_long_expression():
    with pytest.raises(
        ValueError, match=r"is no column.*\(a number has too many digits\)"
    ) as caught:
        run("9" * 9000)
    assert len(str(caught.value)) < 600
    with pytest.raises(ValueError, match=r"'`watch ms` is None' is not allowed|write =="):
        run("`watch ms` is None")


def _refused(expression, table):
    try:
        assert len(evaluate(expression, table, "log.csv", "task 't'").missing) == 4
    except ValueError:
        return True
    return False


_CONSTANTS = ("0", "1e400", "'x'", "True", "1" * 400, "(1, 'x')", "-0.0", "None")
_OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "==", "<", ">=", "and", "or", "&", "|", "in",
              "not in", "is")  # fmt: skip
_FUNCTIONS = ("log", "abs", "exp", "is_missing", "round", "sqrt")


def draw_expression(draw, depth):
    """A random expression, most often one that makes little sense."""
    if depth == 0:
        return draw.choice([*NAMES, *NAMES, *_CONSTANTS])
    left, right = (draw_expression(draw, depth - 1) for _ in range(2))
    two, one = draw.choice(_OPERATORS), draw.choice(_FUNCTIONS)
    return draw.choice([f"({left}) {two} ({right})", f"({left}) {two} {right}", f"-({left})",
                        f"not ({left})", f"~({left})", f"{one}({left})"])  # fmt: skip


@pytest.mark.filterwarnings("error")  # NumPy warns of what it then makes something of
def test_any_expression_has_values_or_is_refused():
    draw = random.Random(0)
    table = TABLE.append_column("tags", pa.array([[1], [2], None, []]))
    refused = sum(_refused(draw_expression(draw, draw.randint(1, 3)), table) for _ in range(500))
    assert 100 < refused < 475


def test_errors_name_the_cell():
    with pytest.raises(ValueError, match="as a number") as caught:
        run("word > 3")
    assert str(caught.value) == (
        "log.csv: row 1: column 'word' is 'x', but task 't' uses it as a number in 'word > 3'; "
        "compare it with text: word == '...'"
    )
    with pytest.raises(ValueError, match=r"no column 'c', which task 't' needs"):
        run("c > 3")
    with pytest.raises(ValueError, match=r"'b' is 0.5, but and, or, not need true or false"):
        run("flag and b")


def test_what_is_no_expression_is_said_of_its_task():
    task = {"name": "late", "label": "click", "observed_when": "click >"}
    raw = {"features": [{"kind": "numeric", "name": "a"}], "tasks": [task]}
    with pytest.raises(ValueError, match=r"^observed_when of task 'late': 'click >' is no column"):
        required_columns(config_from_dict(raw))


def test_columns_of():
    text = "`watch ms` / a > 0.9 and word in ('a', 'b') and a < log(b)"
    assert columns_of(text) == ["watch ms", "a", "word", "b"]
    assert columns_of("log > 3") == ["log"]


@settings(max_examples=30)
@given(st.text(min_size=1, max_size=40))
def test_any_column_name_can_be_quoted(name):
    assert columns_of(f"{quote(name)} == 1") == [name]


def test_numbers_as_people_write_them():
    texts = ["$1,234.50", "1.2k", "-3", None, "2M", "12 %"]
    log = pa.table({"paid": pa.array(texts, pa.large_string())})
    found = evaluate("number(paid) > 1000", log, "log.csv", "task 'much'")
    assert found.data.tolist() == [True, True, False, False, True, False]
    assert found.missing.tolist() == [False, False, False, True, False, False]
    comma = pa.table({"paid": pa.array(["1.234,50 €", "0,5k"], pa.large_string())})
    assert evaluate("number(paid, ',')", comma, "log.csv", "x").data.tolist() == [1234.5, 500.0]
    whole = pa.table({"paid": [3, 4]})  # of a file that has plain numbers alone
    assert evaluate("number(paid)", whole, "log.csv", "x").data.tolist() == [3, 4]
    wrong = pa.table({"paid": pa.array(["$3", "1,2"], pa.large_string())})
    with pytest.raises(ValueError, match=r"row 2: column 'paid' is '1,2', expected a number such"):
        evaluate("number(paid)", wrong, "log.csv", "x")
    with pytest.raises(ValueError, match="the mark of decimals"):
        evaluate("number(paid, ';')", wrong, "log.csv", "x")
