"""`Column`: sampled rows of one input, in the form that all checks read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

ColumnKind = Literal["number", "id", "part", "list"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One input of N rows, as an encoder gave it; V = N items but for lists.

    Attributes:
        name: The feature's.
        kind: number, id, part (of a datetime) or list.
        items: Scaled numbers, float32 [V]; or ids, int [V]: 0 missing, 1 unseen, 2 and up.
        missing: Bool [V].
        rows: N.
        at_zero: Where missing numbers cannot be told from those scaled to 0: the share of the items
            that are 0; None elsewhere, and of ids.
        empty_rows: Of lists: the share of the rows that have none; None elsewhere.
        empty: What a file calls an item that is missing, or that `at_zero` counts.
        zero: What the number 0 is scaled to; None of ids.
        unseen: Share of the present items that training did not know; None where ids have no
            vocabulary.
        expected_unseen: Of training rows: the share that would be unseen if its row were held out.
        shares_rare: Whether ids that training saw too rarely share the row of unseen ones.
        unscale: Scaled numbers as the file has them.
        shown: An id as the file has it.
    """

    name: str
    kind: ColumnKind
    items: np.ndarray
    missing: np.ndarray
    rows: int
    at_zero: float | None = None
    empty_rows: float | None = None
    empty: str = "empty"
    zero: float | None = None
    unseen: float | None = None
    expected_unseen: float | None = None
    shares_rare: bool = False
    unscale: Callable[[np.ndarray], np.ndarray] = lambda x: x
    shown: Callable[[int], str] = str

    @property
    def coded(self) -> tuple[np.ndarray, int]:
        """Ranks of the items among their values, and how many values; missing ones come first."""
        values, ranks_V = np.unique(self.items, return_inverse=True)
        return np.where(self.missing, 0, ranks_V + 1), len(values) + 1
