"""Refuses a vocabulary that outgrows its table."""

import numpy as np

from mmoe.config.tables import VocabularyEncoding

LARGEST = 2**31 - 8  # ids are int32, and two rows are taken


def refuse_too_many(
    num_ids: int,
    encoding: VocabularyEncoding,
    label: str,
    counts: np.ndarray | None = None,
    otherwise: str = "encoding: hash",
) -> None:
    """Refuses more ids than `max_rows` (or int32) allows.

    Args:
        num_ids: Ids that would have a row of their own.
        encoding: `max_rows` and `min_count`.
        label: The column, as error messages call it.
        counts: How often each was seen, most frequent first; finds the `min_count` that helps.
        otherwise: The last way out.

    Raises:
        ValueError: They are too many; says how many, and what to change.

    Example:
        >>> encoding = VocabularyEncoding(max_rows=2)
        >>> refuse_too_many(3, encoding, "log.csv: column 'user'", np.array([9, 4, 1]))
        Traceback (most recent call last):
        ValueError: log.csv: column 'user' has 3 ids that were seen at least 1 time(s), but max_rows
        is 2; set max_rows: 3 or more, min_count: 2 (keeps 2 ids), or encoding: hash
    """
    limit = LARGEST if encoding.max_rows is None else encoding.max_rows
    if num_ids <= limit:
        return
    seen, help_ = "", ""
    if counts is not None:
        least = int(counts[limit]) + 1  # above the first id that has no row
        kept = int((counts >= least).sum())
        help_ = f" min_count: {least} (keeps {kept:,} ids)," if kept else ""
        seen = f" that were seen at least {encoding.min_count} time(s)"
    largest = "the largest table" if encoding.max_rows is None else "max_rows"
    raise ValueError(
        f"{label} has {num_ids:,} ids{seen}, but {largest} is {limit:,}; set"
        f"{'' if encoding.max_rows is None else f' max_rows: {num_ids:,} or more,'}{help_} or "
        f"{otherwise}"
    )
