"""Additive truths: every column moves a label by itself."""

import numpy as np

from benchmarks.first_try.logs.worlds import (
    Draw,
    Drawn,
    bump,
    hashes,
    log_of,
    shuffled,
    with_gaps,
    words,
    zipf,
)

_AD_SIZES = (3, 5, 7, 9, 12, 18, 24, 40, 60, 90, 150, 250, 400, 700, 1200, 2000, 3500, 6000, 9000)


@log_of("additive", 100_000, 101, """
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


@log_of("additive", 20_000, 102, """
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


@log_of("additive", 3_000, 103, """
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


@log_of("additive", 60_000, 104, """
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


@log_of("additive", 30_000, 105, """
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
