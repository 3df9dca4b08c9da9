"""Values that are the same: missing ones, NaN, lists; of neighbours as of any two."""

import numpy as np
import pyarrow as pa
import pytest

from mmoe.datasets.rows.requests import same_neighbours, same_values


def test_missing_values_and_nan_agree_with_themselves():
    numbers = pa.chunked_array([[1.0, None, float("nan"), float("nan"), None]])
    others = pa.chunked_array([[1.0, None, float("nan"), 2.0, float("nan")]])
    assert same_values(numbers, others).tolist() == [True, True, True, False, False]
    lists = pa.chunked_array([[["a"], None, [], ["a", None], ["a"]]])
    other = pa.chunked_array([[["a"], None, None, ["a", None], ["b"]]])
    assert same_values(lists, other).tolist() == [True, True, False, True, False]


ROWS = {
    "numbers": pa.array([1.0, 1.0, None, None, float("nan"), float("nan"), 2.0]),
    "texts": pa.array(["a", "a", None, "", "", "b"]),
    "lists": pa.array([[1, 2], [1, 2], [1, 3], [], [], None, None, [4], [4, 4], [4, 4]]),
    "lists-with-gaps": pa.array([[1, None], [1, None], [1, 2], [None], [None]]),
    "lists-of-texts": pa.array([["a"], ["a"], ["b", "c"], ["b", "c"], ["b", "d"]]),
    "large": pa.array([[0.5], [0.5], [0.25]], pa.large_list(pa.float64())),
    "fixed": pa.array([[1, 2], [1, 2], None, None, [1, 3]], pa.list_(pa.int64(), 2)),
    "nothing": pa.nulls(4),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("sliced", [False, True])
def test_neighbours_are_compared_as_any_two_values(kind, sliced):
    rows = ROWS[kind].slice(1) if sliced else ROWS[kind]
    pair = (pa.chunked_array([rows.slice(n, len(rows) - 1)]) for n in (1, 0))
    assert np.array_equal(same_neighbours(rows), same_values(*pair))


def test_one_value_has_no_neighbour():
    assert len(same_neighbours(pa.array([1]))) == len(same_neighbours(pa.array([[1]]))) == 0
