"""Pairs of id columns whose hidden numbers multiply: what a factorization machine would find.

A pair of a user and an item is seldom seen twice, so it has no rate of its own that could be
measured (`crosses`). But where tastes are a few hidden numbers of each, what an additive model
leaves over, as a matrix of users by items, has a few directions that come again in other rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import sparse

from mmoe.datasets.infer.measured.coded import Coded
from mmoe.datasets.infer.measured.crosses import Leftover

_COLUMNS = 6  # of ids, that are paired: those of the most values that rows can tell apart
_VALUES = 20  # a column of fewer has crosses
_DIRECTIONS = 4
_ROUNDS = 4  # of the power iteration
_SHRINKAGE = 8.0  # in units of a row's information
_SURE = 5.0


@dataclass(frozen=True)
class Product:
    """Two columns whose hidden numbers predict a label together.

    Attributes:
        columns: Their names.
        task: The label.
        z: In standard errors.
    """

    columns: tuple[str, str]
    task: str
    z: float


def find_product(
    columns: Mapping[str, Coded], numbers: set[str], rows: int, over: Sequence[Leftover]
) -> Product | None:
    """Finds the pair of id columns whose products predict a label best; None: there is none.

    Directions come from one half of the sample, and are judged on the other.

    Args:
        columns: All that are inputs.
        numbers: Which of them are numbers.
        rows: Of the sample.
        over: What an additive model leaves of every label.

    Source: the power iteration with a few vectors: Halko, Martinsson & Tropp, "Finding structure
        with randomness" (SIAM Review 2011), algorithm 4.4.
    """
    ids = [name for name in columns if name not in numbers and columns[name].size >= _VALUES]
    ids = sorted(ids, key=lambda name: -min(columns[name].size, rows / 20))[:_COLUMNS]
    if len(ids) < 2:
        return None
    found = [
        Product((one, two), label.task, _z(columns[one], columns[two], label))
        for label in over
        for one, two in combinations(ids, 2)
    ]
    best = max(found, key=lambda product: product.z, default=None)
    return best if best is not None and best.z > _SURE else None


def _z(one: Coded, two: Coded, left: Leftover) -> float:
    """How well the leading directions of each half predict what is left of the other."""
    u_L, i_L = one.codes_S[left.index_L], two.codes_S[left.index_L]
    sizes = one.cells, two.cells
    gains = [
        left.left_L[~half_L] * _predicted(u_L, i_L, sizes, left, half_L)
        for half_L in (left.half_L, ~left.half_L)
    ]
    gains_L = np.concatenate(gains)
    spread = float(np.sqrt((gains_L**2).sum()))
    return float(gains_L.sum()) / spread if spread > 0 else 0.0


def _predicted(
    u_L: np.ndarray, i_L: np.ndarray, sizes: tuple[int, int], left: Leftover, half_L: np.ndarray
) -> np.ndarray:
    """What directions of a half say of the other rows, up to a factor."""
    weights = [
        np.sqrt(np.bincount(codes_L[half_L], left.information_L[half_L], size) + _SHRINKAGE)
        for codes_L, size in ((u_L, sizes[0]), (i_L, sizes[1]))
    ]
    values = left.left_L[half_L] / (weights[0][u_L[half_L]] * weights[1][i_L[half_L]])
    matrix = sparse.csr_array((values, (u_L[half_L], i_L[half_L])), shape=sizes)
    right = np.random.default_rng(0).normal(size=(sizes[1], min(_DIRECTIONS, *sizes)))
    across = np.linalg.qr(matrix @ right)[0]
    for _ in range(_ROUNDS):
        across = np.linalg.qr(matrix @ np.linalg.qr(matrix.T @ across)[0])[0]
    right = matrix.T @ across  # its columns are as long as the singular values
    u, i = u_L[~half_L], i_L[~half_L]
    return np.einsum("nk,nk->n", across[u], right[i]) / (weights[0][u] * weights[1][i])
