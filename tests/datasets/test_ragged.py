import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import ListFeature
from mmoe.datasets.ragged import to_ragged

FEATURE = ListFeature(name="tags")


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64())])
@pytest.mark.parametrize("start", [0, 2])
def test_the_values_of_a_list_column_are_not_copied(kind, start):
    lists = pa.array([[n, n + 1] for n in range(100)], kind)
    ragged = to_ragged(pa.chunked_array([lists.slice(start)]), FEATURE)
    (values,) = ragged.values.chunks
    own = lists.values.buffers()[1]
    assert own.address <= values.buffers()[1].address < own.address + own.size
    assert values.to_pylist() == [m for n in range(start, 100) for m in (n, n + 1)]
    np.testing.assert_array_equal(ragged.offsets, np.arange(0, 201 - 2 * start, 2))


def test_nulls_inside_lists_are_dropped_and_null_lists_are_empty():
    lists = pa.chunked_array([[[1, None, 2], None, [], [None]]], pa.list_(pa.int64()))
    ragged = to_ragged(lists, FEATURE)
    assert ragged.values.to_pylist() == [1, 2]
    assert ragged.offsets.tolist() == [0, 2, 2, 2, 2]
