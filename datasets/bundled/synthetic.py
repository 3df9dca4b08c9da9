"""`synthetic-funnel`: an invented click → purchase log whose true probabilities are known.

A market of users and items comes first: who sees what, and how that moves the logits. A signal is a
function of columns that the log shows, and of nothing else, so the probabilities made of it are the
best that any model can predict. Most of it is out of reach for a linear model: products of
categories, bumps over numbers, a preference that moves with age.
"""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.rows.splits import Splits, assign_splits

SEGMENTS = 6
CATEGORIES = 12
_DEVICES = 4
_GENDERS = 3  # the last one is "not given"
_POSITIONS = 10
_RECENT = 6  # longest list of recent categories
_AGES = (18, 80)
DAYS = 28
_USER_EXPONENT = 0.75  # users are active more evenly than items are popular
_ITEM_EXPONENT = 1.0
# Share of the traffic at which an id shows half of its own effect. Rarer ids show hardly any: an
# effect that is seen three times cannot be learned by anyone, and would only widen every gap.
_HALF_EFFECT_SHARE = 1 / 4000

# Share of a task's logit variance. Linear models reach the first four.
SHARES = {
    "main": 0.45,
    "recent": 0.04,
    "user": 0.02,
    "item": 0.10,
    "numbers": 0.24,
    "price × age": 0.07,
    "segment × category": 0.05,
    "hour × device": 0.03,
}


@dataclass(frozen=True)
class Market:
    """The users and items of a log; position in an array = rank in popularity."""

    user_share: np.ndarray
    user_id: np.ndarray
    user_segment: np.ndarray
    user_gender: np.ndarray
    user_age: np.ndarray
    item_share: np.ndarray
    item_id: np.ndarray
    item_category: np.ndarray
    item_price: np.ndarray
    item_rating: np.ndarray
    taste: np.ndarray  # [SEGMENTS, 256] category codes; a uniform column is a draw of a segment


def draw_market(rng: np.random.Generator, users: int, items: int) -> Market:
    """Draws users and items; ids are shuffled, so an id's size says nothing about its rank."""
    rating = np.clip(rng.normal(3.8, 0.7, items), 1, 5).round(1)
    rating[rng.random(items) < 0.1] = np.nan  # nobody has rated it yet
    shelf = rng.dirichlet(np.full(CATEGORIES, 0.5), SEGMENTS).cumsum(axis=1)
    steps = (np.arange(256) + 0.5) / 256
    return Market(
        user_share=_zipf(users, _USER_EXPONENT),
        user_id=rng.permutation(users) + 1_000_000,
        user_segment=rng.integers(0, SEGMENTS, users),
        user_gender=rng.choice(_GENDERS, users, p=[0.46, 0.46, 0.08]),
        user_age=np.clip(18 + rng.gamma(2.6, 8.5, users), *_AGES).astype(np.int64),
        item_share=_zipf(items, _ITEM_EXPONENT),
        item_id=rng.permutation(items) + 1,
        item_category=rng.integers(0, CATEGORIES, items),
        item_price=np.exp(rng.normal(3.0, 0.9, items)),
        item_rating=rating,
        taste=np.stack([np.searchsorted(row[:-1], steps) for row in shelf]),
    )


@dataclass(frozen=True)
class Impressions:
    """Rows of the log in code form (`user` and `item` are ranks); NaN = missing number."""

    user: np.ndarray
    item: np.ndarray
    seconds: np.ndarray  # since the log began
    device: np.ndarray
    position: np.ndarray
    discount: np.ndarray
    days_since_visit: np.ndarray
    session_minutes: np.ndarray
    recent: np.ndarray  # [N, _RECENT] category codes, −1 behind the list's end
    market: Market

    @property
    def segment(self) -> np.ndarray:
        """Segment code of each row's user."""
        return self.market.user_segment[self.user]

    @property
    def gender(self) -> np.ndarray:
        """Gender code of each row's user; the last one is not given."""
        return self.market.user_gender[self.user]

    @property
    def age(self) -> np.ndarray:
        """Age of each row's user, in years."""
        return self.market.user_age[self.user]

    @property
    def category(self) -> np.ndarray:
        """Category code of each row's item."""
        return self.market.item_category[self.item]

    @property
    def rating(self) -> np.ndarray:
        """Mean rating of each row's item, NaN where nobody rated."""
        return self.market.item_rating[self.item]

    @property
    def hour(self) -> np.ndarray:
        """Hour of the day of each row, 0 to 23."""
        return self.seconds // 3600 % 24

    @property
    def price(self) -> np.ndarray:
        """Price that each row shows: after the discount, in cents' precision."""
        return np.maximum((self.market.item_price[self.item] * (1 - self.discount)).round(2), 0.01)


def draw_impressions(rng: np.random.Generator, market: Market, rows: int) -> Impressions:
    """Draws `rows` impressions, in order of time."""
    busy = 1.3 + np.sin(2 * np.pi * (np.arange(24) - 14) / 24)  # most traffic in the evening
    hour = _draw(rng, busy, rows)
    seconds = rng.integers(0, DAYS, rows) * 86_400 + hour * 3_600 + rng.integers(0, 3_600, rows)
    user = _draw(rng, market.user_share, rows)
    session = rng.gamma(2.0, 6.0, rows).round(1)
    session[rng.random(rows) < 0.05] = np.nan
    discount = np.where(rng.random(rows) < 0.5, 0.0, rng.beta(2, 5, rows)).round(2)
    recent = market.taste[market.user_segment[user][:, None], rng.integers(0, 256, (rows, _RECENT))]
    length = rng.integers(0, _RECENT + 1, rows)
    recent[np.arange(_RECENT) >= length[:, None]] = -1
    return Impressions(
        user=user,
        item=_draw(rng, market.item_share, rows),
        seconds=np.sort(seconds),
        device=_draw(rng, np.array([0.5, 0.3, 0.15, 0.05]), rows),
        position=1 + _draw(rng, 1 / np.arange(1.0, _POSITIONS + 1), rows),
        discount=discount,
        days_since_visit=rng.exponential(7.0, rows).round(2),
        session_minutes=session,
        recent=recent,
        market=market,
    )


def draw_parts(
    rng: np.random.Generator, users: int, items: int
) -> dict[str, dict[str, np.ndarray]]:
    """Draws the random constants of one task's signal, for each of `SHARES`."""
    return {
        "main": {
            "category": rng.normal(size=CATEGORIES),
            "segment": rng.normal(size=SEGMENTS),
            "device": 0.5 * rng.normal(size=_DEVICES),
            "gender": 0.5 * rng.normal(size=_GENDERS),
            "slope": np.array([0.25, -0.5]),  # of a better position, of log price
        },
        "user": {"effect": rng.normal(size=users)},
        "item": {"effect": rng.normal(size=items)},
        "segment × category": {
            "side": _balanced_signs(rng, SEGMENTS),
            "style": _balanced_signs(rng, CATEGORIES) * rng.uniform(0.7, 1.3, CATEGORIES),
        },
        "price × age": {"turn": rng.uniform(0, 2 * np.pi, 1)},
        "hour × device": {"peak": rng.uniform(0, 24, 1), "sign": _balanced_signs(rng, _DEVICES)},
        "numbers": {
            "centre": rng.uniform(0.35, 0.65, 4),
            "sign": rng.choice([-1.0, 1.0], 4),
            "missing": rng.normal(0, 0.3, 4),
        },
        "recent": {"appeal": rng.normal(size=CATEGORIES)},
    }


def part_values(name: str, p: dict[str, np.ndarray], x: Impressions) -> np.ndarray:
    """Returns one part of a signal on every row, before it is scaled to its share."""
    match name:
        case "main":
            better, cheap = p["slope"]
            linear = better * (_POSITIONS - x.position) + cheap * np.log(x.price)
            who = p["segment"][x.segment] + p["gender"][x.gender]
            return linear + who + p["category"][x.category] + p["device"][x.device]
        case "user":
            return (p["effect"] * _visible(x.market.user_share))[x.user]
        case "item":
            return (p["effect"] * _visible(x.market.item_share))[x.item]
        case "segment × category":
            return p["side"][x.segment] * p["style"][x.category]
        case "price × age":
            return _price_fits_age(np.log(x.price), x.age, p["turn"])
        case "hour × device":
            return p["sign"][x.device] * np.cos(2 * np.pi * (x.hour - p["peak"]) / 24)
        case "numbers":
            return _bumps(_unit_numbers(x), **p)
        case _:
            shown = x.recent >= 0
            appeal = np.where(shown, p["appeal"][x.recent], 0.0).sum(axis=1)
            return appeal / np.maximum(shown.sum(axis=1), 1)


def _price_fits_age(log_price: np.ndarray, age: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """A bump at the price that an age prefers; the preference swings once between 18 and 80."""
    wanted = 2.8 + 0.9 * np.sin(2 * np.pi * (age - _AGES[0]) / 40 + turn)
    return np.exp(-((log_price - wanted) ** 2) / (2 * 0.6**2))


def _unit_numbers(x: Impressions) -> np.ndarray:
    """Four numeric columns brought near [0, 1], shape [4, N]."""
    return np.stack(
        [
            (x.age - _AGES[0]) / 50,
            np.log1p(x.days_since_visit) / np.log(25),
            np.log1p(x.session_minutes) / np.log(40),
            (x.rating - 2.4) / 2.6,
        ]
    )


def _bumps(
    unit: np.ndarray, *, centre: np.ndarray, sign: np.ndarray, missing: np.ndarray
) -> np.ndarray:
    distance = (unit - centre[:, None]) / 0.22
    value = sign[:, None] * np.exp(-(distance**2) / 2)
    return np.where(np.isnan(value), missing[:, None], value).sum(axis=0)


def _balanced_signs(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draws as many +1 as −1, so that the other factor's mean effect vanishes."""
    return rng.permutation(np.where(np.arange(count) % 2, 1.0, -1.0))


def _visible(share: np.ndarray) -> np.ndarray:
    """Computes the share of its own effect that an id of this popularity shows: s² / (s² + h²)."""
    return share**2 / (share**2 + _HALF_EFFECT_SHARE**2)


def _zipf(count: int, exponent: float) -> np.ndarray:
    weight = np.arange(1, count + 1) ** -exponent
    return weight / weight.sum()


def _draw(rng: np.random.Generator, weight: np.ndarray, rows: int) -> np.ndarray:
    """Codes 0, 1, … drawn in proportion to their weight."""
    edges = np.cumsum(weight)
    codes = np.searchsorted(edges, rng.random(rows) * edges[-1], side="right")
    return np.minimum(codes, len(edges) - 1)  # rounding may put a draw on the last edge


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
