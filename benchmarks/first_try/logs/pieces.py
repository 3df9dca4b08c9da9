"""What the worlds are made of: ids by Zipf's law, effects, bumps, trees, texts."""

from collections.abc import Sequence

import numpy as np


def zipf(rng: np.random.Generator, size: int, rows: int, power: float = 1.0) -> np.ndarray:
    """Draws ids from 0 to size − 1, the first ones most often."""
    weights = 1 / np.arange(1, size + 1) ** power
    bounds = np.cumsum(weights / weights.sum())
    return np.minimum(np.searchsorted(bounds, rng.random(rows)), size - 1)


def shuffled(world: np.random.Generator, size: int, low: int, high: int) -> np.ndarray:
    """Returns `size` different whole numbers in [low, high): ids in no order."""
    span = high - low
    if span <= 4 * size:
        return low + world.permutation(span)[:size]
    found = np.unique(world.integers(low, high, 2 * size))
    return world.permutation(found)[:size]


def hashes(world: np.random.Generator, size: int) -> np.ndarray:
    """Returns `size` texts as a hash writes them."""
    numbers = world.integers(0, 2**63, size)
    return np.array([f"{number:016x}" for number in numbers])


def words(world: np.random.Generator, size: int) -> np.ndarray:
    """Returns `size` different made-up names."""
    ends = ["bar", "den", "kol", "mir", "nus", "pel", "ros", "sta", "tin", "vor", "wex", "yal"]
    found: list[str] = []
    while len(found) < size:
        name = "".join(world.choice(ends, int(world.integers(2, 5))))
        if name not in found:
            found.append(name)
    return np.array(found)


def bump(x_N: np.ndarray, middle: float, width: float) -> np.ndarray:
    """Returns 1 at the middle, falling to 0 on both sides."""
    return np.exp(-(((x_N - middle) / width) ** 2))


def standard(x_N: np.ndarray) -> np.ndarray:
    """Returns ranks of the values, from −1 to 1."""
    order = np.argsort(np.argsort(x_N, kind="stable"), kind="stable")
    return 2 * order / max(len(x_N) - 1, 1) - 1


class Tree:
    """A random tree over columns: axis-parallel cuts, a number in each leaf.

    Args:
        world: Decides cuts and leaves.
        samples: Column → some of its values, at which it may be cut.
        depth: Of the tree.
        scale: Deviation of the leaves.
    """

    def __init__(
        self,
        world: np.random.Generator,
        samples: dict[str, np.ndarray],
        depth: int,
        scale: float,
    ) -> None:
        self.column = str(world.choice(sorted(samples)))
        self.cut = float(np.quantile(samples[self.column], world.uniform(0.15, 0.85)))
        self.leaves = world.normal(0, scale, 2)
        self.children: Sequence[Tree] = ()
        if depth > 1:
            self.children = [Tree(world, samples, depth - 1, scale) for _ in range(2)]

    def __call__(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Returns each row's leaf."""
        right_N = columns[self.column] > self.cut
        if not self.children:
            return self.leaves[right_N.astype(int)]
        left, right = (child(columns) for child in self.children)
        return np.where(right_N, right, left)


def forest(
    world: np.random.Generator, samples: dict[str, np.ndarray], trees: int, depth: int, scale: float
) -> list[Tree]:
    """Returns some trees; a row's effect is the sum of its leaves."""
    return [Tree(world, samples, depth, scale / trees**0.5) for _ in range(trees)]


def add_up(trees: Sequence[Tree], columns: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the sum of the leaves, per row."""
    return np.sum([tree(columns) for tree in trees], axis=0)


def with_gaps(rng: np.random.Generator, values_N: np.ndarray, share: float) -> np.ndarray:
    """Returns floats of which a share is missing."""
    return np.where(rng.random(len(values_N)) < share, np.nan, values_N.astype(np.float64))
