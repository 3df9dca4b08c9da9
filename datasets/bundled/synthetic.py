"""`synthetic-funnel`: an invented click → purchase log whose true probabilities are known."""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.bundled.synthetic_world import (
    CATEGORIES,
    SEGMENTS,
    SHARES,
    Impressions,
    draw_impressions,
    draw_market,
    draw_parts,
    part_values,
)
from mmoe.datasets.rows.splits import Splits, assign_splits

_ORIGIN = "synthetic-funnel"
_FIRST_SECOND = 1_735_689_600  # 2025-01-01 00:00 UTC
REFERENCE_ROWS = 50_000  # on which signals are brought to zero mean and unit variance
CLICK_SPREAD = 1.6  # standard deviation of the click logit: oracle AUC near 0.82
_PURCHASE_SPREAD = 1.95  # clicked rows are more alike than all rows, hence the wider spread


@dataclass(frozen=True)
class FunnelLog:
    """A generated log and, for each of its rows, the truth behind the labels.

    `click_probability` is P(click = 1 | the row's other columns) and `purchase_probability` is
    P(purchase = 1 | click = 1, the same columns), both float64 of shape [N].
    """

    table: pa.Table
    click_probability: np.ndarray
    purchase_probability: np.ndarray


def generate_funnel(
    rows: int = 600_000,
    *,
    users: int = 150_000,
    items: int = 50_000,
    correlation: float = 0.9,
    click_rate: float = 0.3,
    purchase_rate: float = 0.35,
    seed: int = 0,
) -> FunnelLog:
    """Draws a log of impressions with a click and, after a click only, perhaps a purchase.

    Both logits are functions of the columns in the table, so no model can beat the probabilities
    returned here. With s₁ the click signal and s₂ a signal of the same kind, uncorrelated with it:
    `click logit = a₁ + b₁·s₁`, `purchase logit = a₂ + b₂·(ρ·s₁ + √(1 − ρ²)·s₂)`.

    Args:
        rows: Impressions, in order of time.
        users: User ids that may occur; the popularity of ids follows Zipf's law.
        items: Item ids that may occur.
        correlation: ρ in [−1, 1], the correlation of the two logits over all impressions.
        click_rate: Mean click probability.
        purchase_rate: Mean purchase probability over clicked rows.
        seed: Fixes users, items, truth and rows. Independent of a run's seeds.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> log = generate_funnel(rows=1000, users=200, items=100, seed=3)
        >>> log.table.num_rows, log.click_probability.shape
        (1000, (1000,))
        >>> clicked = log.table["click"].to_numpy() == 1
        >>> bool((log.table["purchase"].to_numpy()[~clicked] == 0).all())
        True

    Source:
        The correlation of tasks as a parameter follows Ma et al., KDD 2018, §3.2, where it is
        the cosine between weight vectors; here it is the correlation between logits.
    """
    _check_ranges(locals())
    # One stream a purpose: another number of rows leaves users, items and the truth as they were.
    market_rng, truth_rng, reference_rng, rows_rng, label_rng = np.random.default_rng(seed).spawn(5)
    market = draw_market(market_rng, users, items)
    reference = draw_impressions(reference_rng, market, REFERENCE_ROWS)
    seen = draw_impressions(rows_rng, market, rows)
    shared, shared_seen = _signal(truth_rng, reference, seen)
    own, own_seen = _signal(truth_rng, reference, seen)
    overlap = float(np.mean(own * shared))
    own, own_seen = own - overlap * shared, own_seen - overlap * shared_seen
    rest = np.sqrt(1 - correlation**2) / own.std()
    clicks = _Logit.fit(shared, np.ones_like(shared), CLICK_SPREAD, click_rate)
    purchases = _Logit.fit(
        correlation * shared + rest * own, clicks(shared), _PURCHASE_SPREAD, purchase_rate
    )
    p_click = clicks(shared_seen)
    p_purchase = purchases(correlation * shared_seen + rest * own_seen)
    click = label_rng.random(rows) < p_click
    purchase = click & (label_rng.random(rows) < p_purchase)
    return FunnelLog(_to_table(seen, click, purchase), p_click, p_purchase)


def load(config: RunConfig, data: Path | None) -> Splits:
    """Generates the log of `config.data.options` and splits it as `config.data.split` says.

    Args:
        config: A run whose `data.source` is `synthetic-funnel`; `data.options` holds arguments of
            `generate_funnel`.
        data: Must be None: there is nothing to read.

    Returns:
        The splits, with the true P(click) and P(purchase | click) of every test row.

    Raises:
        ValueError: An option is unknown or out of range, or `data` was given.
    """
    if data is not None:
        raise ValueError(f"--data {data}: synthetic-funnel makes its own rows; leave --data out")
    log = generate_funnel(**_checked_options(config.data.options))
    split_N = assign_splits(
        log.table, config.data.split, config.split_seed, _ORIGIN, config.data.requests
    )
    train, validation, test = (
        log.table.take(pa.array(np.flatnonzero(split_N == part))) for part in range(3)
    )
    return Splits(
        train=train,
        validation=validation,
        test=test,
        oracle={name: truth_N[split_N == 2] for name, truth_N in _truths(config, log).items()},
        origin=_ORIGIN,
    )


def files(config: RunConfig, data: Path | None) -> dict[str, list[Path]]:
    """Returns None: there is nothing to read."""
    return {}


def _truths(config: RunConfig, log: FunnelLog) -> dict[str, np.ndarray]:
    """The true probability of each task whose label the generator knows, [N]."""
    clicks = {task.name for task in config.tasks if task.label == "click"}
    truths = {}
    for task in config.tasks:
        if task.label == "click" and task.observed_when is None:
            truths[task.name] = log.click_probability
        elif task.label == "purchase" and task.observed_when in clicks | {"click"}:
            truths[task.name] = log.purchase_probability
        elif task.label == "purchase" and task.observed_when is None:
            # On all impressions, without a click there is no purchase.
            truths[task.name] = log.click_probability * log.purchase_probability
    return truths


@dataclass(frozen=True)
class _Logit:
    """signal → probability: sigmoid(intercept + spread · signal)."""

    intercept: float
    spread: float

    def __call__(self, signal: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-(self.intercept + self.spread * signal)))

    @classmethod
    def fit(cls, signal: np.ndarray, weight: np.ndarray, spread: float, rate: float) -> "_Logit":
        """The intercept that gives the weighted mean probability `rate`, by bisection."""
        low, high = -40.0, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            mean = np.average(cls(middle, spread)(signal), weights=weight)
            low, high = (middle, high) if mean < rate else (low, middle)
        return cls((low + high) / 2, spread)


def _signal(
    rng: np.random.Generator, reference: Impressions, seen: Impressions
) -> tuple[np.ndarray, np.ndarray]:
    """A new signal on the reference rows (mean 0, variance 1) and, scaled alike, on the log's."""
    market = reference.market
    parts = draw_parts(rng, len(market.user_id), len(market.item_id))
    total = np.zeros(len(reference.user))
    total_seen = np.zeros(len(seen.user))
    for name, share in SHARES.items():
        values = part_values(name, parts[name], reference)
        scale = np.sqrt(share) / max(float(values.std()), 1e-12)
        total += scale * (values - values.mean())
        total_seen += scale * (part_values(name, parts[name], seen) - values.mean())
    return total / total.std(), total_seen / total.std()


def _to_table(x: Impressions, click: np.ndarray, purchase: np.ndarray) -> pa.Table:
    names = [f"c{code:02d}" for code in range(CATEGORIES)]
    kept = x.recent >= 0  # codes [N, L], padded with −1
    offsets = np.concatenate([[0], kept.sum(axis=1).cumsum()]).astype(np.int32)
    recent = pa.ListArray.from_arrays(pa.array(offsets), _words(names, x.recent[kept]))
    stamps = (_FIRST_SECOND + x.seconds).astype("datetime64[s]")
    return pa.table(
        {
            "timestamp": pa.array(stamps),
            "user_id": x.market.user_id[x.user],
            "segment": _words([f"s{code}" for code in range(SEGMENTS)], x.segment),
            "age": x.age,
            "gender": _words(["female", "male", None], x.gender),
            "item_id": x.market.item_id[x.item],
            "category": _words(names, x.category),
            "price": x.price,
            "discount": x.discount,
            "rating": pa.array(x.rating, from_pandas=True),
            "hour": x.hour,
            "device": _words(["phone", "desktop", "tablet", "tv"], x.device),
            "position": x.position,
            "days_since_visit": x.days_since_visit,
            "session_minutes": pa.array(x.session_minutes, from_pandas=True),
            "recent_categories": recent,
            "click": click.astype(np.int8),
            "purchase": purchase.astype(np.int8),
        }
    )


def _words(words: Sequence[str | None], codes: np.ndarray) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(codes))


def _check_ranges(arguments: Mapping[str, Any]) -> None:
    """Refuses what YAML lets through: text for numbers, no rows, a rate of zero."""
    for name, value in arguments.items():
        if name in ("rows", "users", "items", "seed"):
            least = 0 if name == "seed" else 1
            right = isinstance(value, int) and not isinstance(value, bool) and value >= least
            expected = f"a whole number of at least {least}"
        elif name == "correlation":
            right = _is_number(value) and -1 <= value <= 1
            expected = "a number from -1 to 1"
        else:
            right = _is_number(value) and 0 < value < 1
            expected = "a number between 0 and 1"
        if not right:
            raise ValueError(f"synthetic-funnel: {name} is {value!r}; expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    known = list(inspect.signature(generate_funnel).parameters)
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ValueError(f"data.options: synthetic-funnel has no option {name!r}; {hint}")
    return options
