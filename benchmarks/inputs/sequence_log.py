"""A generated log of people who look at items, and what they looked at before."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

_ITEMS, _CATEGORIES, _INTERESTS = 2_000, 40, 4
_MEAN_LENGTH, _MOST = 15, 50
_HOUR = 3600.0
_FADES_AFTER = 72 * _HOUR


@dataclass(frozen=True)
class SequenceLog:
    """Rows, and the true probability of each click."""

    table: pa.Table
    probability_N: np.ndarray


def sequence_log(rows: int, seed: int, *, interest: bool) -> SequenceLog:
    """Generates rows: a candidate, the events before it with their times, and a click.

    Everybody has a few interests, categories, and looks at items of these most of the time. Where
    `interest` is set, what is clicked is what goes with recent events of the candidate's own
    category, `1.5 ln(1 + Σ exp(−age / 72 h))`; else people click what is popular, whatever they saw
    before.

    Args:
        rows: N.
        seed: Of all that is drawn.
        interest: Do clicks depend on the candidate and the events together?
    """
    rng = np.random.default_rng(seed)
    category_I = rng.integers(0, _CATEGORIES, _ITEMS)
    by_category = [np.flatnonzero(category_I == c) for c in range(_CATEGORIES)]
    appeal_I = rng.normal(scale=0.7, size=_ITEMS)
    interests = rng.integers(0, _CATEGORIES, (rows, _INTERESTS))
    lengths_N = np.minimum(rng.geometric(1 / _MEAN_LENGTH, rows) - 1, _MOST)
    candidate_N = _items(rng, interests, np.arange(rows), by_category, share=0.4)
    row_V = np.repeat(np.arange(rows), lengths_N)
    event_V = _items(rng, interests, row_V, by_category, share=0.8)
    age_V = rng.exponential(_FADES_AFTER, len(row_V))
    order_V = np.lexsort((-age_V, row_V))  # the oldest first
    age_V = age_V[order_V]
    same_V = category_I[event_V] == category_I[candidate_N[row_V]]
    felt_N = np.bincount(row_V, same_V * np.exp(-age_V / _FADES_AFTER), minlength=rows)
    logit_N = -1.6 + appeal_I[candidate_N] + (1.5 * np.log1p(felt_N) if interest else 0.0)
    probability_N = 1 / (1 + np.exp(-logit_N))
    now_N = rng.integers(1_700_000_000, 1_710_000_000, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths_N)])

    def lists(values_V: np.ndarray) -> pa.Array:
        return pa.LargeListArray.from_arrays(offsets, pa.array(values_V))

    table = pa.table(
        {
            "item": candidate_N,
            "category": category_I[candidate_N],
            "hour": (now_N // 3600) % 24,
            "now": now_N,
            "seen_items": lists(event_V),
            "seen_categories": lists(category_I[event_V]),
            "seen_times": lists((now_N[row_V] - age_V).astype(np.int64)),
            "click": (rng.random(rows) < probability_N).astype(np.int64),
        }
    )
    return SequenceLog(table, probability_N)


def _items(
    rng: np.random.Generator,
    interests: np.ndarray,
    row_V: np.ndarray,
    by_category: list[np.ndarray],
    share: float,
) -> np.ndarray:
    """Items for these rows: so large a share of one of the row's interests, the others anything."""
    own_V = interests[row_V, rng.integers(0, interests.shape[1], len(row_V))]
    any_V = rng.integers(0, len(by_category), len(row_V))
    category_V = np.where(rng.random(len(row_V)) < share, own_V, any_V)
    place_V = rng.random(len(row_V))
    sizes = np.array([len(items) for items in by_category])
    starts = np.cumsum(sizes) - sizes
    in_order = np.concatenate(by_category)
    return in_order[starts[category_V] + (place_V * sizes[category_V]).astype(np.int64)]
