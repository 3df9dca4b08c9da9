import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import ListFeature
from mmoe.datasets.features.list import list_ids

FEATURE = ListFeature(name="tags")


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
@pytest.mark.parametrize("start", [0, 2])
def test_the_values_of_a_list_column_are_not_copied(kind, start):
    lists = pa.array([[n, n + 1] for n in range(100)], kind)
    ragged = list_ids(pa.table({"tags": lists.slice(start)}), FEATURE, "log")
    (values,) = ragged.values.chunks
    own = lists.values.buffers()[1]
    assert own.address <= values.buffers()[1].address < own.address + own.size
    assert values.to_pylist() == [m for n in range(start, 100) for m in (n, n + 1)]
    np.testing.assert_array_equal(ragged.offsets, np.arange(0, 201 - 2 * start, 2))


@pytest.mark.parametrize(("keep", "expected"), [("first", [1, 2, 6]), ("last", [4, 5, 6])])
def test_the_first_or_the_last_of_a_sequence(keep, expected):
    feature = ListFeature(name="seen", max_length=2, keep=keep)
    lists = pa.chunked_array([[[1, 2, None, 4, 5], None, [6], []]])
    ragged = list_ids(pa.table({"seen": lists}), feature, "log")
    assert ragged.values.to_pylist() == expected
    assert ragged.offsets.tolist() == [0, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "lists",
    [
        [[1, None, 2], None, [], [None], [3]],
        [[1.0, float("nan"), 2.0], None, [], [float("nan")], [3.0]],
        ["1||2", None, "", "|", "3"],
        pa.array([[1, 2], None, [None, None], None, [3, None]], pa.list_(pa.int64(), 2)),
    ],
)
def test_nulls_in_lists_are_dropped_and_rows_stay(lists):
    ragged = list_ids(pa.table({"tags": lists}), FEATURE, "log")
    assert [str(value).removesuffix(".0") for value in ragged.values.to_pylist()] == list("123")
    assert ragged.offsets.tolist() == [0, 2, 2, 2, 2, 3]
