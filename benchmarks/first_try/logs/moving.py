"""Times: drift, seasons, ids that come and go, running numbers, and days unlike the others."""

import numpy as np

from benchmarks.first_try.logs.worlds import (
    FEWER,
    Draw,
    Drawn,
    Value,
    bump,
    log_of,
    shuffled,
    words,
    zipf,
)

_DAY = 86_400
_NOON = 1_735_732_800  # 2025-01-01 12:00 UTC, a Wednesday
_LATER = {**FEWER, "by_time": True}


def _seconds(rng: np.random.Generator, rows: int, late: bool, days: float) -> np.ndarray:
    """Rising seconds of `days`, or of the seventh part of it that comes after."""
    low, high = (days, days * 8 / 7) if late else (0, days)
    return np.sort(rng.uniform(low * _DAY, high * _DAY, rows)).astype(np.int64)


def _text(seconds_N: np.ndarray, unit: str) -> np.ndarray:
    """ISO 8601, to the second (`s`) or the day (`D`)."""
    moments_N = (np.int64(_NOON) + seconds_N).astype("datetime64[s]")
    return np.datetime_as_string(moments_N.astype(f"datetime64[{unit}]"))


def _hour(seconds_N: np.ndarray) -> np.ndarray:
    return (_NOON + seconds_N) % _DAY / 3_600


def _weekday(seconds_N: np.ndarray) -> np.ndarray:
    return ((_NOON + seconds_N) // _DAY + 3) % 7  # 1970-01-01 was a Thursday


@log_of("moving", 30_000, 601, """
    alarm:0.1 load:value
    time:moment site:id outside_c:number
""", **_LATER)  # fmt: skip
def _meters(world: np.random.Generator) -> Draw:
    """A load by hour and weekday that grows; the rows to judge on are the seven weeks after."""
    sites = words(world, 25)
    base, growth = world.normal(0, 0.35, 25), world.normal(0.15, 0.1, 25)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        t, s = _seconds(rng, rows, late, 330), rng.integers(0, 25, rows)
        hour, year = _hour(t), t / (365 * _DAY)
        works = (_weekday(t) < 5) * bump(hour, 13, 4.5)
        outside = np.round(
            11
            - 11 * np.cos(2 * np.pi * (year - 0.05))
            + 4 * np.cos(2 * np.pi * (hour - 15) / 24)
            + rng.normal(0, 3.5, rows),
            1,
        )
        heat = np.maximum(16 - outside, 0) + 1.4 * np.maximum(outside - 22, 0)
        load = np.exp(base[s] + growth[s] * year) * (40 + 45 * works + 1.6 * heat)
        return {"time": _text(t, "s"), "site": sites[s], "outside_c": outside}, {
            "alarm": 0.05 * heat + 1.5 * works + 1.2 * base[s] + growth[s] * year,
            "load": Value(load, np.round(load * rng.gamma(40, 1 / 40, rows), 2)),
        }

    return draw


@log_of("moving", 40_000, 602, """
    sold:0.4 price:value
    time:time lot_no:noise month_no:noise article:id seller:id ware:id asked:number
""", seen_when={"price": "sold"}, **_LATER)  # fmt: skip
def _auctions(world: np.random.Generator) -> Draw:
    """Articles that live for a few weeks, so that most of those to judge on are new; sellers stay;
    a running number and a month that the future has not."""
    born = np.sort(world.uniform(-0.3, 1.2, 4_000))
    articles, sellers, wares = shuffled(world, 4_000, 1, 10**6), words(world, 250), words(world, 18)
    ware_of, article = world.integers(0, 18, 4_000), world.normal(0, 0.5, 4_000)
    seller, ware = world.normal(0, 0.6, 250), world.normal(0, 0.6, 18)
    fashion = world.normal(0, 0.8, 18)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        t = _seconds(rng, rows, late, 240)
        part = t / (240 * _DAY)
        i = np.searchsorted(born, part - rng.exponential(0.05, rows)).clip(0, 3_999)
        s, w = zipf(rng, 250, rows, 0.7), ware_of[i]
        asked = np.round(np.exp(3 + ware[w] + rng.normal(0, 0.7, rows)), 2)
        wanted = article[i] + seller[s] + fashion[w] * (part - 0.5)
        sold = wanted - 0.8 * (np.log(asked) - 3 - ware[w])
        price = asked * np.exp(0.35 * wanted)
        return {
            "time": _NOON + t, "lot_no": 50_000 + t // 300, "month_no": 1 + t // (30 * _DAY),
            "article": articles[i], "seller": sellers[s], "ware": wares[w], "asked": asked,
        }, {
            "sold": sold,
            "price": Value(price, np.round(price * rng.gamma(16, 1 / 16, rows), 2)),
        }  # fmt: skip

    return draw


@log_of("moving", 30_000, 603, """
    solved:0.6 opened_again:0.12
    time:time week_no:noise channel:id plan:id region:id tenure_days:number words:number
""", **_LATER)  # fmt: skip
def _tickets(world: np.random.Generator) -> Draw:
    """Weights that drift: what a plan and a region mean today is not what they meant last year."""
    channels, plans, regions = words(world, 8), words(world, 6), words(world, 40)
    channel, plan, moves = (
        world.normal(0, scale, n) for scale, n in ((0.5, 8), (0.6, 6), (1.2, 6))
    )
    region, region_moves = world.normal(0, 0.4, 40), world.normal(0, 0.8, 40)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        t = _seconds(rng, rows, late, 365)
        part = t / (365 * _DAY)
        c, p, r = rng.integers(0, 8, rows), rng.integers(0, 6, rows), zipf(rng, 40, rows, 0.5)
        tenure, length = np.round(rng.exponential(400, rows)), np.round(rng.lognormal(4, 0.8, rows))
        drift = moves[p] * (part - 0.5) + region_moves[r] * (part - 0.5)
        solved = channel[c] + plan[p] + region[r] + drift - 0.4 * np.log(length / 55)
        again = -0.6 * solved + 0.6 * drift + 0.7 * bump(np.log1p(tenure), 3.5, 1.0)
        return {
            "time": _text(t, "s"), "week_no": 1 + t // (7 * _DAY), "channel": channels[c],
            "plan": plans[p], "region": regions[r], "tenure_days": tenure, "words": length,
        }, {"solved": solved, "opened_again": again}  # fmt: skip

    return draw


@log_of("moving", 30_000, 604, """
    frost:0.12 flow:value
    date:moment year:noise month:either river:id rain_mm:number height_m:number
""", **_LATER)  # fmt: skip
def _rivers(world: np.random.Generator) -> Draw:
    """Seasons: three years to train on, and the five months after to judge on."""
    rivers = words(world, 30)
    size, phase, height = (
        world.normal(0, 0.8, 30), world.normal(0, 0.04, 30), np.round(world.gamma(3, 220, 30))
    )  # fmt: skip

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        t, r = _seconds(rng, rows, late, 3 * 365), rng.integers(0, 30, rows)
        year = t / (365.25 * _DAY)
        season = np.cos(2 * np.pi * (year - 0.3 - phase[r]))
        twice = np.cos(4 * np.pi * (year - 0.1))
        rain = np.where(rng.random(rows) < 0.55, 0, np.round(rng.exponential(6, rows), 1))
        log_flow = 3 + size[r] + 0.5 * season + 0.3 * twice + 0.25 * np.log1p(rain)
        frost = 3.5 * np.cos(2 * np.pi * (year - 0.02)) + height[r] / 300
        moments = (np.int64(_NOON) + t).astype("datetime64[s]")
        return {
            "date": _text(t, "D"),
            "year": moments.astype("datetime64[Y]").astype(int) + 1970,
            "month": moments.astype("datetime64[M]").astype(int) % 12 + 1,
            "river": rivers[r], "rain_mm": rain, "height_m": height[r],
        }, {
            "frost": frost,
            "flow": Value(
                np.exp(log_flow + 0.25**2 / 2),
                np.round(np.exp(log_flow + rng.normal(0, 0.25, rows)), 3),
            ),
        }  # fmt: skip

    return draw


@log_of("days", 24_000, 605, """
    busy:0.3 takings:value
    time:moment stall:id indoors:either km_to_centre:number
""", told=("--split", "random"), **FEWER)  # fmt: skip
def _stalls(world: np.random.Generator) -> Draw:
    """One day in twenty is unlike the others, and rows of every day are to be judged."""
    stalls, days = words(world, 35), 140
    stall, weekly = world.normal(0, 0.4, 35), world.normal(0, 0.3, 7)
    indoors, km = world.integers(0, 2, 35), np.round(world.gamma(2, 2, 35), 2)
    feasts = world.permutation(days)[: days // 20]
    day = world.normal(0, 0.12, days)
    day[feasts] += world.choice([-1, 1], len(feasts)) * world.uniform(1.5, 2.5, len(feasts))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        # From midnight, so that a day here is one of the calendar
        t = _seconds(rng, rows, False, days) - _DAY // 2
        s, d = zipf(rng, 35, rows, 0.4), (t + _DAY // 2) // _DAY
        felt = day[d] * np.where(indoors[s] == 1, 0.6, 1.2)
        by_hour = 1.2 * bump(_hour(t), 13, 2.5) + 0.9 * bump(_hour(t), 19, 2)
        crowd = stall[s] + weekly[_weekday(t)] + felt + by_hour - 0.06 * km[s]
        takings = np.exp(4 + 0.6 * crowd)
        return {
            "time": _text(t, "s"), "stall": stalls[s], "indoors": indoors[s],
            "km_to_centre": km[s],
        }, {
            "busy": 1.6 * crowd,
            "takings": Value(takings, np.round(takings * rng.gamma(8, 1 / 8, rows), 2)),
        }  # fmt: skip

    return draw
