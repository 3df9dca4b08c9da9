"""Columns of a wide log are compared with few others: work grows with their number."""

import numpy as np
import pytest

from mmoe.datasets.infer import coded as sampled
from mmoe.datasets.infer import decide
from mmoe.datasets.infer.coded import Coded, copies_of, one_to_one, relate, same_order

ROWS = 400
RNG = np.random.default_rng(5)


def coded(codes_S, *, numbers=True):
    size = int(codes_S.max()) + 1
    return Coded(codes_S, np.arange(size, dtype=np.float64) if numbers else None, size)


def wide(count):
    """Ids of 30 values, some of them renamed; numbers that never come again, some the other way."""
    columns = {}
    for n in range(count):
        codes_S = RNG.permutation(np.arange(ROWS) % 30)
        columns[f"c{n}"] = coded(codes_S)
        columns[f"numbers{n}"] = coded(RNG.permutation(ROWS))
        if n % 5 == 0:
            columns[f"renamed{n}"] = coded(RNG.permutation(30)[codes_S], numbers=False)
            columns[f"reversed{n}"] = coded(ROWS - 1 - columns[f"numbers{n}"].codes_S)
            columns[f"copied{n}"] = columns[f"numbers{n}"]
    return columns


def each_goes_with_one(left, right):
    """As `one_to_one`, value by value."""
    if left.size > ROWS / 2:
        return same_order(left, right)
    to_V = np.full(left.cells, -1)
    to_V[left.codes_S] = right.codes_S
    same = left.size == right.size and np.array_equal(to_V[left.codes_S], right.codes_S)
    return same and len(np.unique(to_V[to_V >= 0])) == (to_V >= 0).sum()


def test_copies_are_those_of_every_pair():
    columns = wide(40)
    names = list(columns)
    expected = {}
    for place, name in enumerate(names):
        for earlier in names[:place]:
            assert one_to_one(columns[earlier], columns[name]) == each_goes_with_one(
                columns[earlier], columns[name]
            )
            if earlier not in expected and one_to_one(columns[earlier], columns[name]):
                expected[name] = earlier
                break
    assert len(expected) == 24
    assert copies_of(columns) == expected


def test_copies_are_found_without_comparing_all_pairs(monkeypatch):
    calls = []
    monkeypatch.setattr(sampled, "one_to_one", lambda *_: calls.append(1))
    digest = sampled._digest
    monkeypatch.setattr(sampled, "_digest", lambda codes: calls.append(1) or digest(codes))
    columns = wide(100)
    copies_of(columns)
    assert len(calls) <= 2 * len(columns)


def test_owners_are_found_and_few_columns_are_compared_in_all_rows(monkeypatch):
    columns = wide(100)
    users_S = RNG.integers(0, 60, ROWS)
    columns |= {"user": coded(users_S), "age": coded(RNG.permutation(60)[users_S] // 5)}
    compared = []
    followers = sampled._followers

    def watched(*args):
        compared.append(followers(*args))
        return compared[-1]

    monkeypatch.setattr(sampled, "_followers", watched)
    assert relate(columns).owner["age"] == "user"
    # A column follows from itself and from its copies
    assert sum(map(len, compared)) < 2 * len(compared)
    compared.clear()
    monkeypatch.setattr(sampled, "_OWNERS", 3)
    relate(columns)
    assert len(compared) <= 3


@pytest.mark.parametrize("count", [50, 500])
def test_a_family_is_judged_once(monkeypatch, count):
    calls = []
    monkeypatch.setattr(decide, "_of_family", lambda members: calls.append(len(members)) or 0.0)
    facts = {f"c{n}": decide.Facts(f"c{n}", 100, None, None, False) for n in range(count)}
    assert len(decide.decide(facts)) == count
    assert calls == [count]
