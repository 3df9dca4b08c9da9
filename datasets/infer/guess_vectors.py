"""Columns of vectors: told from lists of ids, and their feature."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import VectorFeature
from mmoe.datasets.values.arrow import is_list, is_text, pc
from mmoe.datasets.values.vectors import items_of, reals_of

_LOOKED_AT = 1000  # rows whose numbers are looked at
_FEW = 20  # different numbers: as few are names, or flags
_SHORTEST = 2
# Longer vectors are projected, where there are so many rows to learn the projection from. Test AUCs
# on invented logs, as they are and with dim 32: of 64 numbers 0.683 and 0.690 (2,000 rows), 0.730
# and 0.724 (10,000), 0.748 and 0.754 (40,000); of 256 numbers 0.651 and 0.636 (2,000), 0.717 and
# 0.714 (10,000). One run each.
_WIDEST = 32
_ROWS_TO_PROJECT = 20_000


@dataclass(frozen=True)
class VectorFacts:
    """What is known of a column of lists of real numbers.

    Attributes:
        length: Of the first.
        problem: Why they are no vectors; "": they are.
    """

    length: int
    problem: str = ""


def look_for_vectors(column: pa.ChunkedArray) -> VectorFacts | None:
    """Returns what is known of lists of real numbers, or None: a column holds something else.

    Real numbers are not all whole, and more than a few differ. Text counts where it stands in
    brackets: without, it may as well be a list of ids.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(50, 3)).tolist()
        >>> look_for_vectors(pa.chunked_array([rows]))
        VectorFacts(length=3, problem='')
        >>> look_for_vectors(pa.chunked_array([[[1.0, 7.0], [2.0]]]))
    """
    present = column.drop_null()
    glance = present.slice(0, _LOOKED_AT)
    if not len(glance) or not _may_hold(glance) or not _are_real(glance):
        return None
    lengths_N = items_of(column)[1] if is_list(column.type) else _lengths_in_text(column)
    rows = np.flatnonzero(lengths_N)
    if not len(rows):
        return None
    length = int(lengths_N[rows[0]])
    others = rows[lengths_N[rows] != length]
    if len(others):
        first, other = rows[0] + 1, others[0] + 1
        return VectorFacts(
            length,
            f"lists of real numbers, {length} in row {first}, {lengths_N[others[0]]} in row "
            f"{other}: vectors need one length; beside a list of ids they may be its `weights`",
        )
    return VectorFacts(length) if length >= _SHORTEST else None


def guess_vector(
    facts: VectorFacts, rows: int, name: str, column: str | None
) -> tuple[VectorFeature, str]:
    """Returns the feature, and what it is."""
    dim = _WIDEST if facts.length > _WIDEST and rows >= _ROWS_TO_PROJECT else None
    reason = f"vectors of {facts.length} numbers" + (f"; projected to {dim}" if dim else "")
    return VectorFeature(name=name, column=column, dim=dim), reason


def _may_hold(glance: pa.ChunkedArray) -> bool:
    if is_text(glance.type):
        bracketed = pc.match_substring_regex(glance, r"^\s*[\[(].*[\])]\s*$")
        return bool(pc.all(pc.or_(bracketed, pc.equal(glance, ""))).as_py())
    return is_list(glance.type) and not pa.types.is_nested(glance.type.value_type)


def _are_real(glance: pa.ChunkedArray) -> bool:
    items, _ = items_of(glance)
    if pa.types.is_integer(items.type) or not len(items):
        return False
    numbers_V = reals_of(items)
    present_V = numbers_V[~np.isnan(numbers_V)]
    # A word among them, and it is no list of numbers
    if len(present_V) < 0.5 * len(numbers_V) or (present_V == np.floor(present_V)).all():
        return False
    return len(np.unique(present_V)) > min(_FEW, len(present_V) // 2)


def _lengths_in_text(column: pa.ChunkedArray) -> np.ndarray:
    """By the commas, or else the spaces between numbers; 0 where there is none."""
    if not pc.any(pc.match_substring(column, ","), min_count=0).as_py():
        return items_of(column)[1]
    empty = pc.match_substring_regex(column, r"^[\s\[\]()]*$")
    counted = pc.if_else(empty, 0, pc.add(pc.count_substring(column, ","), 1))
    return pc.fill_null(counted, 0).to_numpy().astype(np.int64)
