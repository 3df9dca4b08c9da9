"""Types and digits that files have: wide decimals, bytes, hours such as 14102100, times of day."""

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmoe
from mmoe.config import config_from_dict
from mmoe.datasets import infer_config
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.infer.guess_tasks import guess_task
from mmoe.datasets.rows.frames import as_table
from mmoe.datasets.rows.locations import number_rows
from mmoe.datasets.rows.sources import load_splits
from mmoe.run.console import SilentReporter
from mmoe.train import train_run
from tests.datasets.infer.ordinary_log import NASTY, infer, log
from tests.datasets.infer.ordinary_log import ROWS as LABEL_ROWS

ROWS = 3000


def log_of(name, cells, kind=None):
    """A log whose clicks depend on which of 40 values the column has."""
    draw = np.random.default_rng(0)
    which = draw.integers(0, 40, ROWS)
    chance = draw.permutation(np.linspace(0.05, 0.95, 40))[which]
    clicks = (draw.random(ROWS) < chance).astype(int)
    column = cells(which)
    if kind is not None:
        column = pa.array(column.to_pylist(), kind)
    return pa.table({name: column, "noise": draw.normal(size=ROWS), "click": clicks})


def trained(config, table, folder):
    """A run of one epoch, and its AUC of click."""
    training = config.training.model_copy(update={"epochs": 1})
    config = config.model_copy(update={"training": training})
    run = train_run(config, folder, data=table, reporter=SilentReporter())
    return run, run.metrics["tasks"]["click"]["auc"]


def test_whole_decimals_beyond_exact_floats_are_ids(tmp_path):
    """Float64 takes neighbours for one: as a number the column says a part of what it knows."""
    for kind in (pa.decimal128(30, 0), pa.decimal128(30, 2)):
        table = log_of("x", lambda which: pa.array([Decimal(2**60 + int(n)) for n in which]), kind)
        config, _ = infer_config(table, ["click"])
        assert {one.name: one.kind for one in config.features}["x"] == "categorical"
    run, auc = trained(config, table, tmp_path / "run")
    assert mmoe.load(run.directory.path).encoder.ids["x"].num_rows == 42
    integers = log_of("x", lambda which: pa.array([2**60 + int(n) for n in which]))
    assert auc == trained(config, integers, tmp_path / "whole")[1] > 0.7


@pytest.mark.parametrize("road", ["csv", "parquet", "arrow", "jsonl", "DataFrame", "table"])
def test_two_columns_of_one_name_never_are_one_of_them(road, tmp_path, mmoe):
    """The first would be noise, the second tells the clicks: no road takes either in silence."""
    draw = np.random.default_rng(0)
    noise, tells = draw.integers(0, 9, 400), draw.integers(0, 9, 400)
    cells = [noise, tells, (tells > 4).astype(int)]
    table = pa.Table.from_arrays([pa.array(cell) for cell in cells], names=["x", "x", "click"])
    file = tmp_path / f"log.{road}"
    if road == "csv":
        lines = [",".join(map(str, row)) for row in zip(*cells, strict=True)]
        file.write_text("x,x,click\n" + "\n".join(lines))
    elif road == "jsonl":
        rows = zip(*cells, strict=True)
        file.write_text("\n".join(f'{{"x": {a}, "x": {b}, "click": {c}}}' for a, b, c in rows))
    elif road == "parquet":
        pq.write_table(table, file)
    elif road == "arrow":
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    given = {"DataFrame": table.to_pandas, "table": lambda: table}.get(road, lambda: file)()
    raw = {
        "features": [{"kind": "categorical", "name": "x"}],
        "tasks": [{"name": "click", "label": "click"}],
    }
    says = "columns are called 'x'|the key 'x' comes twice"
    with pytest.raises(ValueError, match=says):
        load_splits(config_from_dict(raw), given)
    if file.exists():
        code, _, err = mmoe("init", file, "--label", "click", "--out", tmp_path / "config.yaml")
        assert (code, bool(re.search(says, err))) == (2, True), err
    else:
        with pytest.raises(ValueError, match=f"{says}|with one name; rename them"):
            infer_config(as_table(given, "log"), ["click"])


def test_bytes_that_are_text_are_text():
    kinds = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4), pa.string_view()]
    for kind in kinds:
        table = log_of("x", lambda which: pa.array([f"c{n:03d}".encode() for n in which]), kind)
        config, reasons = infer_config(table, ["click"])
        assert {one.name: one.kind for one in config.features}["x"] == "categorical"
        assert reasons.left_out == []
    cells = [f"{n % 40}.5".zfill(4).encode() for n in range(ROWS)]
    table = table.set_column(0, "x", pa.array(cells, pa.binary(4)))
    found, _ = infer_config(table, ["click"])
    assert "x" in {feature.name for feature in found.features}, "numbers in bytes are read too"


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time64("us")], ids=str)
def test_times_of_day_are_inputs(kind):
    unit = 60 * (10**6 if kind == pa.time64("us") else 1)
    table = log_of("at", lambda which: pa.array([int(n) * unit for n in which], kind))
    config, reasons = infer_config(table, ["click"])
    assert "at" in {feature.column or feature.name for feature in config.features}
    assert reasons.left_out == []
    FeatureEncoder.fit(config, table, "log").encode(table, "log")


def test_vectors_with_extreme_numbers_are_encoded_or_refused_by_row():
    draw = np.random.default_rng(0)
    for value in (1e308, np.inf):
        vectors = draw.normal(size=(ROWS, 4))
        vectors[5, 2], vectors[6, 2] = value, -1e308
        table = pa.table({"x": vectors.tolist(), "click": draw.integers(0, 2, ROWS)})
        config, _ = infer_config(table, ["click"])
        if np.isinf(value):
            with pytest.raises(ValueError, match="row 6: column 'x'"):
                FeatureEncoder.fit(config, table, "log")
        else:
            encoder = FeatureEncoder.fit(config, table, "log")
            assert np.isfinite(encoder.encode(table, "log").dense_NF).all()


@pytest.mark.parametrize("low", [0.0, -1.7e308])
@pytest.mark.filterwarnings("error")
def test_numbers_at_the_end_of_float64_are_measured_without_a_complaint(low):
    draw = np.random.default_rng(0)
    x = draw.normal(size=ROWS)
    clicks = (draw.random(ROWS) < 1 / (1 + np.exp(-x))).astype(int)
    x[7], x[8] = 1.7e308, low
    table = pa.table({"x": x, "noise": draw.normal(size=ROWS), "click": clicks})
    config, _ = infer_config(table, ["click"])
    assert {feature.name: feature.kind for feature in config.features}["x"] == "numeric"


@pytest.mark.parametrize(("values", "expression", "kind"), [
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
    ([0.0, 3.0, 5000.0] + [1.0] * 9 + [2.0] * 9, "y", "regression"),
    ([1000, 2000, 3000], "y", "regression"),
    ([*map(Decimal, ("0.00", "1.00", "1.00")), None], "y", "binary"),
    ([*map(Decimal, ("1.00", "2.00", "2.00")), None], "y == 2.0", "binary"),
    ([*map(Decimal, ("0.00", "5.00", "9.00", "3.00")), None], "y", "regression"),
])  # fmt: skip
def test_labels(values, expression, kind):
    column = pa.array((values * LABEL_ROWS)[:LABEL_ROWS])
    config, _, _ = infer(log(y=column), "y")
    assert (config.tasks[0].label, config.tasks[0].kind) == (expression, kind)
    assert config.training.monitor == ("mean.rmse" if kind == "regression" else "mean.logloss")


@pytest.mark.parametrize(("draw", "kind", "target"), [
    (lambda rng: np.exp(rng.normal(size=2000)), "ziln", None),
    (lambda rng: np.append(90 + 30 * rng.random(1999), 5400), "regression", "auto"),
    (lambda rng: np.exp(rng.normal(size=2000)) - 1, "regression", "auto"),
    (lambda rng: rng.exponential(size=2000) ** 2, "regression", "auto"),  # no lognormal
    (lambda rng: np.where(rng.random(2000) < 0.6, 0, np.exp(rng.normal(size=2000))), "ziln", None),
    (lambda rng: rng.standard_t(2, 2000), "huber", "standard"),
    (lambda rng: 3 + rng.integers(-2, 3, 2000), "regression", "standard"),
    (lambda rng: 50 + 9 * rng.normal(size=2000), "regression", "standard"),
])  # fmt: skip
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_tails_of_a_label_say_how_it_is_learnt(draw, kind, target, unit):
    labels = draw(np.random.default_rng(0)) * unit
    table = pa.table({"x": np.arange(2000) % 7, "spent": labels, "click": np.arange(2000) % 2})
    config, reasons = infer_config(table, ["click", "spent"])
    task = config.tasks[1]
    assert (task.kind, task.label) == (kind, "spent")
    assert target in (None, task.target)
    assert config.training.monitor == "mean.gain"
    usual = (kind, target) == ("regression", "standard")
    assert ("furthest" in reasons.tasks["spent"][0]) != usual


def test_words_among_a_label_of_numbers_are_named():
    labels = [str(number) for number in range(100)]
    labels[41] = "n/k"
    with pytest.raises(ValueError, match=r"row 42: label column 'y' is 'n/k', but a number in 99"):
        infer_config(pa.table({"x": range(100), "y": labels}), ["y"])


def test_an_expression_as_a_label():
    config, reasons, _ = infer(log(), "price > 30 and shop != 'shop 1'", "click")
    assert config.tasks[0].label == "price > 30 and shop != 'shop 1'"
    assert {f.name for f in config.features} == {"user_id"}
    assert [column for column, _ in reasons.left_out] == ["buy"]


@pytest.mark.parametrize(("labels", "message"), [
    (["clik"], r"no column 'clik', which --label needs \(did you mean 'click'\?\)"),
    (["shop"], r"holds 9 different texts .* --label \"shop == 'shop \d'\""),
    (["one"], "holds 0 only; a label needs two values or more"),
    (["none"], "is empty; expected 0 and 1"),
    ([], "labels: expected at least one label column"),
    (["price > 1e9"], "is 0 in every row; a label needs both 0 and 1"),
])  # fmt: skip
def test_label_errors(labels, message):
    table = log(one=[0] * LABEL_ROWS, none=pa.array([None] * LABEL_ROWS, pa.int64()))
    with pytest.raises(ValueError, match=message):
        infer_config(table, labels, origin="log.csv")


def test_any_label_name_works():
    table = log(rows=300)
    for name in NASTY:
        named = table.append_column(name, table["click"]).drop_columns(["click"])
        config, _, _ = infer(named, name)
        assert config.tasks[0].name.isascii()


@pytest.mark.parametrize(
    ("label", "values", "infinity"),
    [("y", [0.5, 1.5, 2.5], np.inf), ("`y`", [0, 1, 1], -np.inf), ("y", [0.0], -np.inf)],
)
def test_an_infinite_label_is_named_with_its_row(label, values, infinity):
    column = [float(value) for value in (values * LABEL_ROWS)[:LABEL_ROWS]]
    column[6] = infinity
    message = rf"log\.csv: row 7: label '`?y`?' is {infinity}, expected a finite number; leave"
    with pytest.raises(ValueError, match=message):
        infer_config(log(y=column), [label], origin="log.csv")


@pytest.mark.parametrize("kind", ["int", "float", "text", "decimal"])
def test_a_label_of_zeros_and_ones_with_a_stray_value(kind):
    values = [i % 2 for i in range(LABEL_ROWS)]
    values[41] = 7
    makers = {
        "int": pa.array,
        "float": lambda v: pa.array([float(x) for x in v]),
        "text": lambda v: pa.array([str(x) for x in v]),
        "decimal": lambda v: pa.array(v).cast(pa.decimal128(21, 2)),
    }
    table = number_rows(pa.table({"y": makers[kind](values)}), [("a.csv", LABEL_ROWS)])
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
    ("write", "expression"),
    [
        (lambda x: f"${x:,.2f}", "number(y)"),
        (lambda x: f"{x / 1000:.1f}k", "number(y)"),
        (lambda x: f"{x:.2f} €".replace(".", ","), "number(y, ',')"),
    ],
)
def test_a_label_of_amounts_is_a_regression_of_their_numbers(write, expression):
    amounts = np.random.default_rng(0).uniform(10, 5000, 500)
    guessed = guess_task(pa.table({"y": [write(x) for x in amounts]}), "y", "y", "log.csv")
    assert (guessed.task.label, guessed.task.kind) == (expression, "regression")
    np.testing.assert_allclose(guessed.values_N, amounts, atol=51)
    names = pa.table({"y": [f"{int(x)} Main St" for x in amounts]})
    with pytest.raises(ValueError, match="different texts"):
        guess_task(names, "y", "y", "log.csv")
