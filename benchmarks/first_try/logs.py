"""Invented logs of many kinds, each with the true probabilities of its labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

# A generated log: rows drawn from a world whose true probabilities are known

Family = Literal["additive", "trees", "factors", "shared"]
# What a column may be taken for: a kind of feature, `both` (number and id), or left out
Kinds = frozenset[str]

ID: Kinds = frozenset({"categorical"})
NUMBER: Kinds = frozenset({"numeric", "both"})
EITHER: Kinds = ID | NUMBER  # few values in an order: hours, stars
LIST: Kinds = frozenset({"list"})
VECTOR: Kinds = frozenset({"vector"})
LEFT_OUT: Kinds = frozenset({"left_out"})
TIME: Kinds = frozenset({"left_out", "datetime"})
NOISE: Kinds = EITHER | LEFT_OUT  # says nothing of the labels, so that any kind is right
_KINDS = {
    "id": ID, "number": NUMBER, "either": EITHER, "list": LIST, "vector": VECTOR, "time": TIME,
    "noise": NOISE,
}  # fmt: skip

_PROBE = 50_000  # rows by which a task's rate is set


# Rows before their labels: columns, and each task's logit but for a constant
Drawn = tuple[dict[str, Any], dict[str, np.ndarray]]
# From a generator of rows and their number to rows; `late` rows lie after those of training.
Draw = Callable[[np.random.Generator, int, bool], Drawn]


@dataclass(frozen=True)
class Log:
    """A log of one family."""

    name: str
    family: Family  # What its truth is made of
    rows: int  # To train on, validation included
    rates: Mapping[str, float]  # Task → share of positive rows
    kinds: Mapping[str, Kinds]  # Column → what it may be taken for
    build: Callable[[np.random.Generator], Draw]  # From the world's generator to what draws rows
    seed: int  # Of the world
    # Task → the task without which its label is missing
    seen_when: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def draw(self) -> Draw:
        return self.build(np.random.default_rng([self.seed, 0]))

    @cached_property
    def constants(self) -> dict[str, float]:
        _, logits = self.draw(np.random.default_rng([self.seed, 1]), _PROBE, False)
        return {task: _constant(logits[task], rate) for task, rate in self.rates.items()}

    def training(self) -> pa.Table:
        return self._rows(2, self.rows, late=False)[0]

    def test(self, rows: int) -> tuple[pa.Table, dict[str, np.ndarray]]:
        return self._rows(3, rows, late=True)

    def _rows(self, part: int, rows: int, late: bool) -> tuple[pa.Table, dict[str, np.ndarray]]:
        rng = np.random.default_rng([self.seed, part])
        drawn, logits = self.draw(rng, rows, late)
        if set(drawn) != set(self.kinds):
            raise ValueError(f"{self.name}: columns {sorted(drawn)}, kinds of {self.kinds}")
        true = {t: _sigmoid(logits[t] + c) for t, c in self.constants.items()}
        labels = {t: (rng.random(rows) < p).astype(np.int64) for t, p in true.items()}
        columns = {name: _arrow(values) for name, values in drawn.items()}
        for task, values_N in labels.items():
            before = self.seen_when.get(task)
            hidden_N = None if before is None else labels[before] == 0
            columns[task] = pa.array(values_N, mask=hidden_N)
        return pa.table(columns), true


# By name, in four families; their worlds were drawn before any rule of inference or size was looked
# at on them
LOGS: dict[str, Log] = {}
Build = Callable[[np.random.Generator], Draw]


def _log(
    family: Family, rows: int, seed: int, words: str, seen_when: Mapping[str, str] | None = None
) -> Callable[[Build], Build]:
    """Makes a log of what builds its world; words are `task:rate`, then `column:kind`."""

    def known(build: Build) -> Build:
        rates, right = {}, {}
        for name, _, said in (word.partition(":") for word in words.split()):
            if said in _KINDS:
                right[name] = _KINDS[said]
            else:
                rates[name] = float(said)
        log = build.__name__.removeprefix("_")
        LOGS[log] = Log(log, family, rows, rates, right, build, seed, seen_when or {})
        return build

    return known


def _constant(logits_N: np.ndarray, rate: float) -> float:
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        if _sigmoid(logits_N + middle).mean() < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _sigmoid(logits_N: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logits_N, -40, 40)))


def _arrow(values: Any) -> pa.Array:
    """NaN is a missing value; rows of a matrix are lists of one length."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(values.ravel().astype(np.float32))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return pa.array(values, from_pandas=True)
    return pa.array(values)


# What the worlds are made of: ids by Zipf's law, effects, bumps, trees, texts


def zipf(rng: np.random.Generator, size: int, rows: int, power: float = 1.0) -> np.ndarray:
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
    numbers = world.integers(0, 2**63, size)
    return np.array([f"{number:016x}" for number in numbers])


def words(world: np.random.Generator, size: int) -> np.ndarray:
    ends = ["bar", "den", "kol", "mir", "nus", "pel", "ros", "sta", "tin", "vor", "wex", "yal"]
    found: list[str] = []
    while len(found) < size:
        name = "".join(world.choice(ends, int(world.integers(2, 5))))
        if name not in found:
            found.append(name)
    return np.array(found)


def bump(x_N: np.ndarray, middle: float, width: float) -> np.ndarray:
    return np.exp(-(((x_N - middle) / width) ** 2))


def standard(x_N: np.ndarray) -> np.ndarray:
    """Returns ranks of the values, from −1 to 1."""
    order = np.argsort(np.argsort(x_N, kind="stable"), kind="stable")
    return 2 * order / max(len(x_N) - 1, 1) - 1


class Tree:
    """A random tree over columns: axis-parallel cuts, a number in each leaf."""

    def __init__(
        self, world: np.random.Generator, samples: dict[str, np.ndarray], depth: int, scale: float
    ) -> None:
        self.column = str(world.choice(sorted(samples)))
        self.cut = float(np.quantile(samples[self.column], world.uniform(0.15, 0.85)))
        self.leaves = world.normal(0, scale, 2)
        self.children: Sequence[Tree] = ()
        if depth > 1:
            self.children = [Tree(world, samples, depth - 1, scale) for _ in range(2)]

    def __call__(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        right_N = columns[self.column] > self.cut
        if not self.children:
            return self.leaves[right_N.astype(int)]
        left, right = (child(columns) for child in self.children)
        return np.where(right_N, right, left)


def forest(
    world: np.random.Generator, samples: dict[str, np.ndarray], trees: int, depth: int, scale: float
) -> list[Tree]:
    return [Tree(world, samples, depth, scale / trees**0.5) for _ in range(trees)]


def add_up(trees: Sequence[Tree], columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.sum([tree(columns) for tree in trees], axis=0)


def with_gaps(rng: np.random.Generator, values_N: np.ndarray, share: float) -> np.ndarray:
    return np.where(rng.random(len(values_N)) < share, np.nan, values_N.astype(np.float64))


# Additive truths: every column moves a label by itself

_AD_SIZES = (3, 5, 7, 9, 12, 18, 24, 40, 60, 90, 150, 250, 400, 700, 1200, 2000, 3500, 6000, 9000)


@_log("additive", 100_000, 101, """
    click:0.17 sale:0.02
    C1:id C2:id C3:id C4:id C5:id C6:id C7:id C8:id C9:id C10:id C11:id C12:id C13:id C14:id
    C15:id C16:id C17:id C18:id C19:id
""")  # fmt: skip
def _ads(world: np.random.Generator) -> Draw:
    """Whole-number ids in numbered columns, some dense, some sparse, sizes 3 to 9,000."""
    values = [
        shuffled(world, size, 0, size if i % 3 == 0 else 40 * size + 100)
        for i, size in enumerate(_AD_SIZES)
    ]
    click = [world.normal(0, 0.35, size) for size in _AD_SIZES]
    sale = [0.6 * c + world.normal(0, 0.3, len(c)) for c in click]

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        ids = [zipf(rng, size, rows, 0.9) for size in _AD_SIZES]
        columns = {f"C{i + 1}": values[i][ids[i]] for i in range(len(ids))}
        return columns, {
            "click": np.sum([e[i] for e, i in zip(click, ids, strict=True)], axis=0),
            "sale": np.sum([e[i] for e, i in zip(sale, ids, strict=True)], axis=0),
        }

    return draw


@_log("additive", 20_000, 102, """
    defaulted:0.12 late_fee:0.25
    yearly_income:number open_debt:number amount_asked:number age:number month_opened:either
    rate:number desk:noise
""")  # fmt: skip
def _loans(world: np.random.Generator) -> Draw:
    """Numbers of every shape: heavy-tailed, mostly zero, spiky, periodic, gaps."""
    month = np.cos(2 * np.pi * (np.arange(12) - world.uniform(0, 12)) / 12)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        income = rng.lognormal(10.4, 0.7, rows)
        debt = np.where(rng.random(rows) < 0.75, 0, np.round(rng.lognormal(7.5, 1.4, rows)))
        asked = 500 * rng.integers(2, 80, rows) + np.where(
            rng.random(rows) < 0.3, rng.integers(1, 499, rows), 0
        )
        years = rng.integers(18, 80, rows)
        opened = rng.integers(0, 12, rows)
        rate = rng.normal(6, 2, rows)
        round_sum = asked % 5000 == 0
        bad = (
            -0.7 * np.log(income / 30_000)
            + 0.5 * np.log1p(debt / 500)
            + 0.9 * round_sum
            + 1.4 * bump(years, 25, 8)
            + 0.6 * month[opened]
        )
        late_fee = 0.5 * bad + 1.2 * bump(rate, 8, 1.0) + 0.5 * (debt > 0)
        return {
            "yearly_income": with_gaps(rng, np.round(income, 2), 0.08), "open_debt": debt,
            "amount_asked": asked, "age": years, "month_opened": opened + 1,
            "rate": with_gaps(rng, np.round(rate, 3), 0.03), "desk": rng.integers(0, 1000, rows),
        }, {"defaulted": bad, "late_fee": late_fee}  # fmt: skip

    return draw


@_log("additive", 3_000, 103, """
    left:0.25 upgraded:0.1
    town:id plan:id tenure_months:number support_calls:either height:noise draw:noise
    shard:noise
""")  # fmt: skip
def _subscribers(world: np.random.Generator) -> Draw:
    """Few rows, texts and numbers, columns of noise."""
    towns, plans = words(world, 30), words(world, 4)
    town, plan = world.normal(0, 0.6, 30), world.normal(0, 0.8, 4)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        t, p = zipf(rng, 30, rows, 0.7), rng.integers(0, 4, rows)
        tenure = rng.exponential(20, rows)
        calls = rng.poisson(1.5, rows)
        leaves = town[t] + plan[p] - 0.04 * tenure + 0.35 * calls
        return {
            "town": towns[t], "plan": plans[p], "tenure_months": np.round(tenure, 1),
            "support_calls": calls, "height": np.round(rng.normal(170, 9, rows), 1),
            "draw": rng.random(rows), "shard": rng.integers(0, 64, rows),
        }, {"left": leaves, "upgraded": -0.5 * leaves + 0.03 * tenure + 0.7 * plan[p]}  # fmt: skip

    return draw


@_log("additive", 60_000, 104, """
    opened:0.2 shared:0.01
    article:id outlet:id tags:list hour:either
""")  # fmt: skip
def _news(world: np.random.Generator) -> Draw:
    """Hashed ids, lists of tags in text, an hour of the day; sharing is rare."""
    articles, outlets, tags = hashes(world, 4_000), hashes(world, 120), words(world, 80)
    article, outlet = world.normal(0, 0.5, 4_000), world.normal(0, 0.6, 120)
    tag, tag_share = world.normal(0, 1.0, 80), world.normal(0, 1.0, 80)
    phase = world.uniform(0, 24)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        a, o = zipf(rng, 4_000, rows), zipf(rng, 120, rows)
        counts = rng.integers(1, 5, rows)
        flat = zipf(rng, 80, int(counts.sum()), 0.6)
        row = np.repeat(np.arange(rows), counts)
        mean = np.bincount(row, tag[flat], rows) / counts
        mean_share = np.bincount(row, tag_share[flat], rows) / counts
        ends = np.cumsum(counts)
        texts = [",".join(tags[flat[e - n : e]]) for e, n in zip(ends, counts, strict=True)]
        hour = rng.integers(0, 24, rows)
        opened = article[a] + outlet[o] + mean + 0.7 * np.cos(2 * np.pi * (hour - phase) / 24)
        return {"article": articles[a], "outlet": outlets[o], "tags": texts, "hour": hour}, {
            "opened": opened,
            "shared": 0.5 * opened + mean_share,
        }

    return draw


@_log("additive", 30_000, 105, """
    liked:0.3 saved:0.08
    picture:vector artist:id age_days:number views_before:noise
""")  # fmt: skip
def _pictures(world: np.random.Generator) -> Draw:
    """A pretrained vector of 24 numbers, by which the labels are predicted, and an artist."""
    like, save = world.normal(0, 0.3, 24), world.normal(0, 0.25, 24)
    artist = world.normal(0, 0.6, 300)
    names = shuffled(world, 300, 10_000, 99_999)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        vectors = rng.normal(0, 1, (rows, 24)) * np.linspace(0.2, 3, 24)
        a = zipf(rng, 300, rows, 0.8)
        age = rng.exponential(12, rows)
        unit = vectors / np.linspace(0.2, 3, 24)
        return {
            "picture": vectors,
            "artist": names[a],
            "age_days": age,
            "views_before": np.round(rng.lognormal(3, 1.5, rows)),
        }, {"liked": unit @ like + artist[a] - 0.03 * age, "saved": unit @ save + 0.5 * artist[a]}

    return draw


# Truths of cuts: a label jumps where several columns pass their thresholds together

_TREES_PROBE = 20_000  # rows whose quantiles are the thresholds


@_log("trees", 30_000, 201, """
    claim:0.2 large_claim:0.04
    driver_age:number car_age:either power:number value:number km_a_year:number
    claims_before:either density:number bonus:either region:id make:id
""")  # fmt: skip
def _insurance(world: np.random.Generator) -> Draw:
    """Ten numbers and two names; deep trees, of which few columns matter."""
    regions, makes = words(world, 12), words(world, 40)
    region, make = world.normal(0, 0.4, 12), world.normal(0, 0.5, 40)

    def numbers(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        power = np.round(rng.gamma(6, 18, rows))
        return {
            "driver_age": rng.integers(18, 90, rows).astype(float),
            "car_age": rng.poisson(7, rows).astype(float),
            "power": power,
            "value": np.round(power * rng.lognormal(5, 0.5, rows)),
            "km_a_year": np.round(rng.lognormal(9.2, 0.6, rows), -2),
            "claims_before": rng.poisson(0.3, rows).astype(float),
            "density": np.round(rng.lognormal(5, 1.5, rows), 1),
            "bonus": rng.choice([50, 60, 70, 80, 90, 100, 120, 150], rows).astype(float),
        }

    samples = numbers(np.random.default_rng(world.integers(2**32)), _TREES_PROBE)
    claim, large = (forest(world, samples, 12, 4, 2.0) for _ in range(2))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        columns = numbers(rng, rows)
        r, m = rng.integers(0, 12, rows), rng.integers(0, 40, rows)
        first = add_up(claim, columns) + region[r] + make[m]
        second = 0.6 * first + add_up(large, columns)
        return {**columns, "region": regions[r], "make": makes[m]}, {
            "claim": first,
            "large_claim": second,
        }

    return draw


@_log("trees", 50_000, 202, """
    fault:0.1 stop:0.3
    s00:number s01:number s02:number s03:number s04:number s05:number s06:number s07:number
    s08:number s09:number
""")  # fmt: skip
def _sensors(world: np.random.Generator) -> Draw:
    """Correlated readings, −999 where a sensor was silent."""
    mixing = world.normal(0, 1, (4, 10))

    def numbers(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        hidden = rng.normal(0, 1, (rows, 4))
        readings = hidden @ mixing + rng.normal(0, 0.7, (rows, 10))
        return {f"s{i:02d}": np.round(20 + 4 * readings[:, i], 2) for i in range(10)}

    samples = numbers(np.random.default_rng(world.integers(2**32)), _TREES_PROBE)
    fault, stop = (forest(world, samples, 16, 3, 2.2) for _ in range(2))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        columns = numbers(rng, rows)
        first = add_up(fault, columns)
        second = 0.7 * first + add_up(stop, columns)
        for name in ("s03", "s07"):
            columns[name] = np.where(rng.random(rows) < 0.12, -999.0, columns[name])
        return columns, {"fault": first, "stop": second}

    return draw


@_log("trees", 100_000, 203, """
    rich:0.1 married:0.55
    age:number weeks_worked:number gain:number loss:number job:id tie:id industry_code:id
    wage:noise
""")  # fmt: skip
def _households(world: np.random.Generator) -> Draw:
    """Gains and losses that are zero nearly always and tell much where they are not."""
    jobs, ties = words(world, 15), words(world, 6)
    job, tie = world.normal(0, 0.7, 15), world.normal(0, 0.8, 6)
    amounts = np.sort(np.round(world.lognormal(8, 1, 60)))
    jump = world.normal(0, 2.5, 60)
    codes = world.permutation(50)
    code = world.normal(0, 0.6, 50)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        j, t, c = rng.integers(0, 15, rows), rng.integers(0, 6, rows), rng.integers(0, 50, rows)
        age = rng.integers(16, 90, rows)
        weeks = np.where(rng.random(rows) < 0.6, 52, rng.integers(0, 52, rows))
        which = rng.integers(0, 60, rows)
        has = rng.random(rows) < 0.08
        gain = np.where(has, amounts[which], 0)
        loss = np.where(rng.random(rows) < 0.04, np.round(rng.lognormal(7.4, 0.2, rows)), 0)
        works = (weeks > 45) & (age > 22) & (age < 65)
        rich = (
            1.8 * works
            + np.where(has, 1 + jump[which], 0)
            + 1.5 * ((loss > 1800) & (age > 30))
            + np.where(works, job[j], -0.5 * job[j])
            + code[c]
        )
        married = tie[t] + 2.2 * (age > 27) - 1.2 * (age > 70) + 0.5 * np.where(age > 27, job[j], 0)
        return {
            "age": age, "weeks_worked": weeks, "gain": gain, "loss": loss, "job": jobs[j],
            "tie": ties[t], "industry_code": codes[c],
            "wage": with_gaps(rng, np.round(rng.lognormal(3, 0.5, rows), 2), 0.4),
        }, {"rich": rich, "married": married}  # fmt: skip

    return draw


@_log("trees", 1_500, 204, """
    works:0.6 safe:0.35
    depth_m:number flow:number ph:number built:number people:number metres_above_sea:number
    pump:either
""")  # fmt: skip
def _wells(world: np.random.Generator) -> Draw:
    """Fifteen hundred rows, eight numbers, shallow cuts."""

    def numbers(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        return {
            "depth_m": np.round(rng.gamma(3, 40, rows), 1),
            "flow": np.round(rng.lognormal(1, 0.8, rows), 3),
            "ph": np.round(rng.normal(7, 0.6, rows), 2),
            "built": rng.integers(1950, 2024, rows).astype(float),
            "people": np.round(rng.lognormal(4, 1.2, rows)),
            "metres_above_sea": np.round(rng.normal(600, 300, rows)),
        }

    samples = numbers(np.random.default_rng(world.integers(2**32)), _TREES_PROBE)
    works, safe = (forest(world, samples, 5, 2, 2.0) for _ in range(2))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        columns = numbers(rng, rows)
        pump = rng.integers(0, 5, rows)
        first = add_up(works, columns) + 0.8 * (pump == 2)
        second = add_up(safe, columns) + 0.5 * first
        return {**columns, "pump": pump}, {"works": first, "safe": second}

    return draw


# Truths of pairs: what an id of one column likes of another's


def _tastes(
    world: np.random.Generator, left: int, right: int, width: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of two columns' ids; a pair's effect is their inner product."""
    a, b = world.normal(0, 1, (left, width)), world.normal(0, 1, (right, width))
    return a * (scale / width**0.5), b


def _pairs(left: np.ndarray, i: np.ndarray, right: np.ndarray, j: np.ndarray) -> np.ndarray:
    return np.einsum("nk,nk->n", left[i], right[j])


@_log("factors", 200_000, 301, """
    viewed:0.3 cart:0.08
    userid:id asin:id item_price:number user_score:number video_duration:number
    site_visits:either
""")  # fmt: skip
def _shop(world: np.random.Generator) -> Draw:
    """Customers and goods as whole numbers; names of numbers hold words for ids."""
    users, items = shuffled(world, 2_000, 0, 2_000), shuffled(world, 800, 100_000, 999_999)
    a, b = _tastes(world, 2_000, 800, 3, 1.0)
    c, d = _tastes(world, 2_000, 800, 3, 0.7)
    user, item = world.normal(0, 0.5, 2_000), world.normal(0, 0.5, 800)
    prices = np.round(world.lognormal(3, 0.8, 800), 2)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        i, j = zipf(rng, 2_000, rows, 0.6), zipf(rng, 800, rows, 0.8)
        seconds = np.round(rng.gamma(2, 30, rows))
        visits = rng.poisson(4, rows)
        score = np.round(rng.normal(0, 1, rows), 3)
        seen = user[i] + item[j] + _pairs(a, i, b, j) + 0.5 * score
        cart = 0.6 * seen + _pairs(c, i, d, j) - 0.3 * np.log(prices[j]) + bump(seconds, 60, 30)
        return {
            "userid": users[i], "asin": items[j],
            "item_price": np.round(prices[j] * rng.choice([1, 1, 1, 0.9, 0.8], rows), 2),
            "user_score": score, "video_duration": seconds, "site_visits": visits,
        }, {"viewed": seen, "cart": cart}  # fmt: skip

    return draw


@_log("factors", 100_000, 302, """
    again:0.5 skipped:0.25
    msno:id song:id source:id length_s:number
""")  # fmt: skip
def _songs(world: np.random.Generator) -> Draw:
    """Text ids; a source that changes what a listener wants."""
    listeners, songs, sources = hashes(world, 1_500), words(world, 600), words(world, 6)
    a, b = _tastes(world, 1_500, 600, 4, 0.9)
    c, d = _tastes(world, 6, 600, 2, 0.7)
    listener, song = world.normal(0, 0.4, 1_500), world.normal(0, 0.5, 600)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        i, j, s = zipf(rng, 1_500, rows, 0.5), zipf(rng, 600, rows, 0.7), rng.integers(0, 6, rows)
        again = listener[i] + song[j] + _pairs(a, i, b, j) + _pairs(c, s, d, j)
        skipped = -0.8 * again + 0.8 * _pairs(c, s, d, j) + 0.5 * listener[i]
        length = np.round(rng.normal(210, 45, rows))
        return {"msno": listeners[i], "song": songs[j], "source": sources[s], "length_s": length}, {
            "again": again,
            "skipped": skipped + 0.01 * (length - 210),
        }

    return draw


@_log("factors", 400_000, 303, """
    click:0.1 long_dwell:0.3
    q:id doc:id doc_kind:id place:either device:either doc_words:number
""")  # fmt: skip
def _queries(world: np.random.Generator) -> Draw:
    """400,000 rows; a query wants a kind of document, a device another length."""
    queries, documents = shuffled(world, 1_200, 1, 2**31), shuffled(world, 3_000, 1, 2**31)
    kinds = world.integers(0, 40, 3_000)
    a, b = _tastes(world, 1_200, 40, 4, 1.0)
    query, document = world.normal(0, 0.4, 1_200), world.normal(0, 0.5, 3_000)
    longs = np.round(world.lognormal(6.5, 0.7, 3_000))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        q, d = zipf(rng, 1_200, rows, 0.9), zipf(rng, 3_000, rows, 0.8)
        place = rng.integers(1, 11, rows)
        device = rng.integers(0, 3, rows)
        fits = _pairs(a, q, b, kinds[d])
        click = query[q] + document[d] + fits - 0.25 * place
        dwell = (
            0.7 * fits
            + 0.4 * document[d]
            + np.where(device == 0, 1, -1) * bump(np.log(longs[d]), 7.5, 0.7)
        )
        return {
            "q": queries[q], "doc": documents[d], "doc_kind": kinds[d], "place": place,
            "device": device, "doc_words": longs[d],
        }, {"click": click, "long_dwell": dwell}  # fmt: skip

    return draw


@_log("factors", 40_000, 304, """
    sent:0.15 answered:0.3
    trade:id zip:id pay:number days_open:number
""")  # fmt: skip
def _jobs(world: np.random.Generator) -> Draw:
    """Small cardinalities, 40,000 rows: a trade and a town decide together."""
    trades, towns = words(world, 60), shuffled(world, 90, 10_000, 99_999)
    a, b = _tastes(world, 60, 90, 3, 1.1)
    trade, town = world.normal(0, 0.4, 60), world.normal(0, 0.4, 90)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        i, j = rng.integers(0, 60, rows), rng.integers(0, 90, rows)
        pay = np.round(rng.lognormal(10.5, 0.4, rows), -2)
        days = rng.geometric(0.08, rows)
        sent = trade[i] + town[j] + _pairs(a, i, b, j) + 0.8 * np.log(pay / 36_000) - 0.03 * days
        return {"trade": trades[i], "zip": towns[j], "pay": pay, "days_open": days}, {
            "sent": sent,
            "answered": 0.5 * sent + 0.7 * _pairs(a, i, b, (j * 7) % 90) + 0.3 * trade[i],
        }

    return draw


# Truths that tasks share: a few hidden causes, mixed differently for each label


@_log("shared", 80_000, 401, """
    look:0.5 add:0.2 order:0.08 keep:0.05
    segment:id age:number basket_value:number minutes:number pages:either
""")  # fmt: skip
def _funnel(world: np.random.Generator) -> Draw:
    """Four steps of a sale; three hidden causes are bumps and products of the columns."""
    segments = words(world, 20)
    segment = world.normal(0, 1, (20, 3))
    mixing = world.normal(0.5, 0.5, (3, 4))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        s = rng.integers(0, 20, rows)
        age, basket = rng.normal(40, 14, rows).clip(16, 90), rng.lognormal(3.5, 0.9, rows)
        minutes, pages = rng.gamma(2, 4, rows), rng.poisson(6, rows)
        causes = np.stack(
            [
                1.5 * bump(age, 33, 12) + segment[s, 0],
                np.where(age > 45, 1, -1) * np.tanh(np.log(basket / 33)) + 0.5 * segment[s, 1],
                np.sin(minutes / 2) + 0.2 * np.sqrt(pages) * segment[s, 2],
            ],
            axis=1,
        )
        steps = causes @ mixing
        return {
            "segment": segments[s],
            "age": np.round(age),
            "basket_value": with_gaps(rng, np.round(basket, 2), 0.05),
            "minutes": np.round(minutes, 2),
            "pages": pages,
        }, {t: steps[:, i] for i, t in enumerate(("look", "add", "order", "keep"))}

    return draw


@_log("shared", 120_000, 402, """
    play:0.4 finish:0.3 like:0.1
    ts:time video_no:id maker:id video_seconds:number battery:noise
""", seen_when={"finish": "play"})  # fmt: skip
def _videos(world: np.random.Generator) -> Draw:
    """A log in time: what is liked moves, and the rows to test on lie after those to train on."""
    videos, makers = shuffled(world, 2_500, 1_000, 9_999_999), words(world, 200)
    maker_of = world.integers(0, 200, 2_500)
    quality, trend = world.normal(0, 0.6, 2_500), world.normal(0, 0.8, 2_500)
    maker = world.normal(0, 0.5, 200)
    seconds = np.round(world.lognormal(4.5, 0.8, 2_500))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        moment = np.sort(rng.uniform(1.0, 1.15, rows) if late else rng.uniform(0, 1, rows))
        v = zipf(rng, 2_500, rows, 0.8)
        hour = np.floor(moment * 30 * 24) % 24
        causes = quality[v] + trend[v] * (moment - 0.5) + maker[maker_of[v]]
        length = bump(np.log(seconds[v]), 4.2, 0.8)
        night = np.cos(2 * np.pi * (hour - 22) / 24)
        return {
            "ts": (1_760_000_000 + moment * 30 * 86_400).astype(np.int64), "video_no": videos[v],
            "maker": makers[maker_of[v]], "video_seconds": seconds[v],
            "battery": rng.integers(1, 101, rows),
        }, {
            "play": causes + 0.4 * night, "finish": 0.8 * causes + 1.5 * length,
            "like": 1.2 * causes + 0.8 * length,
        }  # fmt: skip

    return draw


@_log("shared", 60_000, 403, """
    declined:0.08 fraud:0.003
    shop:id card:id amount:number distance_km:number hour:either terminal:noise
""")  # fmt: skip
def _fraud(world: np.random.Generator) -> Draw:
    """Three positives in a thousand rows, beside a frequent label of the same causes."""
    shops, cards = shuffled(world, 400, 0, 400), words(world, 9)
    shop, card = world.normal(0, 0.9, 400), world.normal(0, 0.6, 9)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        s, c = zipf(rng, 400, rows, 0.7), rng.integers(0, 9, rows)
        amount = np.round(rng.lognormal(3.3, 1.1, rows), 2)
        distance = np.where(rng.random(rows) < 0.7, 0, np.round(rng.lognormal(4, 1.5, rows), 1))
        hour = rng.integers(0, 24, rows)
        cause = (
            shop[s]
            + card[c]
            + 0.6 * np.log1p(distance)
            + 1.2 * ((amount > 80) & (hour < 6))
            + 0.8 * bump(np.log(amount), 0.5, 0.6)
        )
        return {
            "shop": shops[s], "card": cards[c], "amount": amount, "distance_km": distance,
            "hour": hour, "terminal": rng.integers(0, 5_000, rows),
        }, {"declined": cause, "fraud": 1.1 * cause + 0.3 * np.log1p(distance)}  # fmt: skip

    return draw


@_log("shared", 10_000, 404, """
    visit:0.15 order:0.05
    bought:list style:id recency:either spent:number
""")  # fmt: skip
def _mail(world: np.random.Generator) -> Draw:
    """Ten thousand letters; what was bought before, as a list with bars between."""
    goods, styles = words(world, 40), words(world, 5)
    taste, deal = world.normal(0, 0.9, (40, 2)), world.normal(0, 0.7, 5)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        counts = rng.integers(1, 6, rows)
        flat = zipf(rng, 40, int(counts.sum()), 0.5)
        row = np.repeat(np.arange(rows), counts)
        means = np.stack([np.bincount(row, taste[flat, k], rows) / counts for k in (0, 1)], axis=1)
        ends = np.cumsum(counts)
        texts = ["|".join(goods[flat[e - n : e]]) for e, n in zip(ends, counts, strict=True)]
        style = rng.integers(0, 5, rows)
        recency, spent = rng.integers(1, 13, rows), np.round(rng.lognormal(4.5, 1.2, rows), 2)
        visit = means[:, 0] + deal[style] - 0.1 * recency + 0.3 * np.log(spent / 90)
        return {"bought": texts, "style": styles[style], "recency": recency, "spent": spent}, {
            "visit": visit,
            "order": 0.7 * visit + means[:, 1],
        }

    return draw
