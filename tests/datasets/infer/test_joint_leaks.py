"""Leaks beyond single columns: histories written after the event, pairs; and what is honest."""

import numpy as np
import pyarrow as pa
import pytest

from mmoe.datasets import infer_config
from mmoe.datasets.infer.told import Told

ROWS = 3_000


def log(history=None, seed=0, *, honest=0.3, **more):
    """Coin flips beside users, items and histories, which hold the candidate now and then."""
    rng = np.random.default_rng(seed)
    item, click = rng.integers(0, 400, ROWS), rng.integers(0, 2, ROWS)
    before = [rng.integers(0, 400, n).tolist() for n in rng.integers(0, 8, ROWS)]
    for n in np.flatnonzero(rng.random(ROWS) < honest):
        before[n].insert(0, int(item[n]))
    columns = {"user": rng.integers(0, 500, ROWS), "item": item, "price": rng.gamma(2, 5, ROWS)}
    if history is not None:
        columns |= history(rng, item, click, before)
    columns |= {name: make(rng, click) for name, make in more.items()}
    return pa.table({**columns, "click": click})


def appended(rng, item, click, before):
    return {"seen": [b + [int(i)] * int(c) for b, i, c in zip(before, item, click, strict=True)]}


def in_text(rng, item, click, before):
    lists = appended(rng, item, click, before)["seen"]
    return {"seen": ["|".join(map(str, one)) for one in lists]}


def with_weights(rng, item, click, before):
    lists = appended(rng, item, click, before)["seen"]
    return {"seen": ["\x01".join(f"{i}:{rng.random():.5f}" for i in one) for one in lists]}


def in_parts(rng, item, click, before):
    lists = appended(rng, item, click, before)["seen"]
    return {"seen": lists, "seen_kind": [[i % 5 for i in one] for one in lists]}


def own_label(rng, item, click, before):
    return {"was": [[*(i % 2 for i in b), int(c)] for b, c in zip(before, click, strict=True)]}


def honest(rng, item, click, before):
    return {"seen": before, "seen_kind": [[i % 5 for i in one] for one in before]}


def left_out(table, **options):
    return dict(infer_config(table, ["click"], **options)[1].left_out)


@pytest.mark.parametrize("history", [in_text, with_weights, in_parts, own_label])
def test_a_list_written_after_the_event_is_left_out(history):
    table = log(history)
    lists = {"seen", "seen_kind", "was"} & set(table.column_names)
    found = left_out(table)
    assert lists <= set(found)
    if history is own_label:
        assert found["was"].startswith("its last item alone predicts 'click' with AUC 1.0")
    else:
        assert found["seen"].startswith("it holds the row's own 'item' in 100.0% of the rows where")
    assert found.get("seen_kind", "its events").startswith("its events")
    kept, _ = infer_config(table, ["click"], told=Told(categorical=["user"]))
    assert "item" in [one.name for one in kept.features]


@pytest.mark.parametrize("kind", ["own item", "own number", "length"])
def test_a_list_written_after_a_number_was_known_is_left_out(kind):
    rng = np.random.default_rng(2)
    table = log(honest)
    item, before = table["item"].to_numpy(), table["seen"].to_pylist()
    spent = np.where(rng.random(ROWS) < 0.4, rng.gamma(2, 10, ROWS).astype(int), 0)
    past = [rng.gamma(2, 10, n).astype(int).tolist() for n in rng.integers(0, 5, ROWS)]
    told = {
        "own item": [
            b + [int(i)] * int(s > 0) for b, i, s in zip(before, item, spent, strict=True)
        ],
        "own number": [[7, *p, int(s), 7] for p, s in zip(past, spent, strict=True)],
        "length": [[1] * int(2 * s) for s in spent],
    }[kind]
    rows = table.drop_columns(["click", "seen", "seen_kind"])
    rows = rows.append_column("spent", pa.array(spent)).append_column("past", pa.array(past))
    found = dict(infer_config(rows.append_column("told", pa.array(told)), ["spent"])[1].left_out)
    assert not any(words in found.get("past", "") for words in ("own", "predicts", "events"))
    words = {"own item": "'spent' is above 0", "own number": "the row's own 'spent' in 100.0%"}
    assert words.get(kind, "its length alone predicts whether 'spent' is above 0") in found["told"]


def test_an_honest_history_stays():
    """Also where all candidates are in it, as of a list of things to buy again."""
    assert not {"seen", "seen_kind"} & set(left_out(log(honest)))
    assert "seen" not in left_out(log(honest, honest=1.0))


def noise(rng, click):
    return rng.integers(0, 2, ROWS)


@pytest.mark.parametrize("kind", ["xor", "later", "box"])
def test_two_columns_that_give_a_label_away_together_are_left_out(kind):
    rng = np.random.default_rng(5)
    click = rng.integers(0, 2, ROWS)
    a = rng.normal(size=ROWS) * 10
    if kind == "xor":
        a = rng.integers(0, 2, ROWS)
        b = a ^ click
    elif kind == "later":
        b = a + np.where(click == 1, 1, -1) * rng.gamma(2, 1, ROWS)
    else:
        b = rng.normal(size=ROWS) * 10
        click = ((a > np.median(a)) & (b > np.median(b))).astype(int)
    columns = {"user": rng.integers(0, 500, ROWS), "a": a, "b": b, "noise": noise(rng, click)}
    found = left_out(pa.table({**columns, "click": click}))
    assert {"a", "b"} <= set(found)
    assert "together they predict 'click' with AUC" in found["a"]
    assert "noise" not in found


@pytest.mark.parametrize("kind", ["xor", "sum", "honest"])
def test_two_columns_that_give_a_number_away_together_are_left_out(kind):
    rng = np.random.default_rng(0)
    high, a, b = rng.permutation(ROWS) % 2, rng.gamma(2, 10, ROWS), rng.integers(1, 6, ROWS)
    spent = {
        "xor": rng.gamma(2, 10, ROWS) + 100 * high,
        "sum": a + 10 * b,
        "honest": a * b * np.exp(rng.normal(0, 0.1, ROWS)),
    }[kind]
    if kind == "xor":
        a = rng.integers(0, 2, ROWS)
        b = a ^ high
    columns = {"user": rng.integers(0, 500, ROWS), "a": a, "b": b, "noise": noise(rng, high)}
    found = dict(infer_config(pa.table({**columns, "spent": spent}), ["spent"])[1].left_out)
    assert set(found) == (set() if kind == "honest" else {"a", "b"})
    if found:
        assert "with 'b': together they predict whether 'spent' is above" in found["a"]
