"""Columns that do not carry over to later rows: months of one year's log, batches, running numbers.

A split by time trains on the past. A column whose values the future does not have, or whose ids
tell the rows between those that they were learned from but none that come later, is the time in
disguise: its embedding learns what happened then, and stands in the way of what lasts. On an eighth
of the flights out of New York, 2013 (42,097 rows by time, one seed; test AUC of cancelled), with
month, the month of the moment and month × day: 0.900; without them: 0.916.
"""

from dataclasses import dataclass

from mmoe.datasets.infer.coded import Coded, Folds, Sample
from mmoe.datasets.infer.decide import SURE
from mmoe.datasets.infer.evidence import Evidence, weigh

_MOST = 0.5  # of the test rows
_OFTENER = 2.0  # than where rows are held out at random
_ALL = 0.9  # of them: a few rows of one known id agree by chance
# What a column tells of rows drawn at random, in standard errors, and the share of it that has to
# be left forwards. Of the flights' columns 0.49 (temperature) to 1 is left, of the day of the month
# 0.04
_PLAIN, _LASTS = 2 * SURE, SURE / 2


@dataclass(frozen=True)
class Finding:
    """A column that does not carry over."""

    reason: str
    as_number: bool  # whether its numbers do


def outdated(
    coded: Coded, sample: Sample, *, ids: bool, later: Evidence | None = None
) -> Finding | None:
    """Finds out whether a column does not carry over to later rows.

    Args:
        coded: The column.
        sample: Its rows, and when each was.
        ids: Whether it is read as ids; else as numbers.
        later: Its evidence forwards, where that is known.

    Returns:
        None where it does, or where no split by time is made.
    """
    if sample.times_S is None:
        return None
    future = sample.future
    unseen, beyond = coded.unseen_in(future.test_S, future.training_S)
    ordered = coded.values_V is not None
    # Ids that are rare at any time are none that time leaves behind
    if (unseen > max(_MOST, _OFTENER * coded.unseen)) if ids else beyond > _MOST:
        ahead = weigh(coded, future.sample, future.folds)
        if ids and unseen < _ALL and ahead is not None and ahead.z_ids > SURE:
            return None  # the known ones tell enough
        share = f"{100 * (unseen if ids else beyond):.0f} % of the test rows have a value"
        reason = f"{share} {'that' if ids else 'beyond all that'} training does not know"
        return Finding(reason, ordered and beyond <= _MOST and _tells(ahead))
    drawn = weigh(coded, sample, Folds(sample.folds_S))
    later = later or weigh(coded, sample, sample.folds)
    if drawn is None or later is None or drawn.strength < _PLAIN:
        return None
    if later.strength >= _LASTS or (not ids and _tells(later)):
        return None
    reason = f"tells rows drawn at random (z {drawn.strength:.0f}), but not later ones (z "
    return Finding(f"{reason}{later.strength:.0f})", ordered and _tells(later))


def _tells(evidence: Evidence | None) -> bool:
    return evidence is not None and evidence.z_number > SURE
