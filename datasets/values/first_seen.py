"""Numbers by the order in which values come first."""

import numpy as np
import pyarrow as pa


def first_seen(codes_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds distinct numbers in the order in which they come first, and each one's place.

    Example:
        >>> first_seen(np.array([7, 3, 7, 5]))
        (array([7, 3, 5]), array([0, 1, 0, 2]))
    """
    coded = pa.array(codes_N).dictionary_encode()
    return coded.dictionary.to_numpy(), coded.indices.to_numpy().astype(np.int64)


def first_rows(places_N: np.ndarray, count: int) -> np.ndarray:
    """Returns the first row of each place, int64 [count], of places by first appearance.

    Example:
        >>> first_rows(np.array([0, 1, 0, 2]), 3)
        array([0, 1, 3])
    """
    first_M = np.empty(count, np.int64)
    first_M[places_N[::-1]] = np.arange(len(places_N))[::-1]  # the last one assigned stays
    return first_M
