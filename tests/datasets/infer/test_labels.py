"""What a label column, or an expression, becomes; and which are refused."""

import numpy as np
import pyarrow as pa
import pytest

from mmoe.datasets.infer.config import infer_config
from mmoe.datasets.infer.guess_tasks import guess_task
from mmoe.datasets.rows.locations import number_rows
from tests.datasets.infer.ordinary_log import NASTY, ROWS, infer, log


@pytest.mark.parametrize(
    ("values", "expression", "kind"),
    [
        (["yes", "no", "no"], "y == 'yes'", "binary"),
        (["ja", "ja", "nein"], "y == 'ja'", "binary"),
        (["oui", "Non", "oui"], "y == 'oui'", "binary"),
        (["- 50000.", "- 50000.", "50000+."], "y == '50000+.'", "binary"),
        (["it's", "its", "its"], 'y == "it\'s"', "binary"),
        ([1, 2, 2], "y == 2", "binary"),
        ([-1, 1, -1], "y == 1", "binary"),
        ([0.0, 1.0, None], "y", "binary"),
        ([True, False, True], "y", "binary"),
        (["true", "false", "false"], "y", "binary"),
        ([0.5, 1.5, 2.5], "y", "regression"),
        ([1, 2, 3, 4, 5], "y", "regression"),
        ([0.0, 3.0, 5000.0] + [1.0] * 9 + [2.0] * 9, "log1p(y)", "regression"),
        ([1000, 2000, 3000], "y", "regression"),
    ],
)
def test_labels(values, expression, kind):
    column = pa.array((values * ROWS)[:ROWS])
    config, _, _ = infer(log(y=column), "y")
    assert (config.tasks[0].label, config.tasks[0].kind) == (expression, kind)
    assert config.training.monitor == ("mean.rmse" if kind == "regression" else "mean.logloss")


def test_an_expression_as_a_label():
    config, reasons, _ = infer(log(), "price > 30 and shop != 'shop 1'", "click")
    assert config.tasks[0].label == "price > 30 and shop != 'shop 1'"
    assert {f.name for f in config.features} == {"user_id"}
    assert [column for column, _ in reasons.left_out] == ["buy"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["clik"], r"no column 'clik', which --label needs \(did you mean 'click'\?\)"),
        (["shop"], r"holds 9 different texts .* --label \"shop == 'shop \d'\""),
        (["one"], "holds 0 only; a label needs two values or more"),
        (["none"], "is empty; expected 0 and 1"),
        ([], "labels: expected at least one label column"),
        (["price > 1e9"], "is 0 in every row; a label needs both 0 and 1"),
    ],
)
def test_label_errors(labels, message):
    table = log(one=[0] * ROWS, none=pa.array([None] * ROWS, pa.int64()))
    with pytest.raises(ValueError, match=message):
        infer_config(table, labels, origin="log.csv")


@pytest.mark.parametrize("name", NASTY)
def test_any_label_name_works(name):
    table = log()
    config, _, _ = infer(table.append_column(name, table["click"]).drop_columns(["click"]), name)
    assert config.tasks[0].name.isascii()


@pytest.mark.parametrize("kind", ["int", "float", "text", "decimal"])
def test_a_label_of_zeros_and_ones_with_a_stray_value(kind):
    values = [i % 2 for i in range(ROWS)]
    values[41] = 7
    makers = {
        "int": pa.array,
        "float": lambda v: pa.array([float(x) for x in v]),
        "text": lambda v: pa.array([str(x) for x in v]),
        "decimal": lambda v: pa.array(v).cast(pa.decimal128(21, 2)),
    }
    table = number_rows(pa.table({"y": makers[kind](values)}), [("a.csv", ROWS)])
    message = (
        r"^a\.csv: row 42: label column 'y' is 7, but 0 or 1 in 1999 of 2000 rows; mend the cell, "
        r'or say what counts: --label "y > 0" \(for a regression: --label "y \+ 0"\)$'
    )
    with pytest.raises(ValueError, match=message):
        guess_task(table, "y", "y", "log.csv")
    assert guess_task(table, "y > 0", "y", "log.csv").task.kind == "binary"
    assert guess_task(table, "y + 0", "y", "log.csv").task.kind == "regression"
    values[:100] = [2] * 100  # many others: a number, not a slip
    table = pa.table({"y": makers[kind](values)})
    assert guess_task(table, "y", "y", "log.csv").task.kind == "regression"


@pytest.mark.parametrize(
    ("values", "expression", "kind"),
    [
        ([0, 1, 1, None], "y", "binary"),
        ([1, 2, 2, None], "y == 2.0", "binary"),
        ([0, 5, 9, 3, None], "y", "regression"),
    ],
)
def test_decimal_labels(values, expression, kind):
    column = pa.array((values * ROWS)[:ROWS]).cast(pa.decimal128(21, 2))
    config, _, _ = infer(log(y=column), "y")
    assert (config.tasks[0].label, config.tasks[0].kind) == (expression, kind)


@pytest.mark.parametrize("label", ["y", "`y`"])
@pytest.mark.parametrize("values", [[0.5, 1.5, 2.5], [0, 1, 1], [0.0]])
@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_an_infinite_label_is_named_with_its_row(label, values, infinity):
    column = [float(value) for value in (values * ROWS)[:ROWS]]
    column[6] = infinity
    message = rf"log\.csv: row 7: label '`?y`?' is {infinity}, expected a finite number; leave"
    with pytest.raises(ValueError, match=message):
        infer_config(log(y=column), [label], origin="log.csv")
