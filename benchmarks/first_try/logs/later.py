"""Logs that came later: regressions, times, deep interactions, numbers learnt by heart."""

import numpy as np

from benchmarks.first_try.logs.worlds import (
    FEWER,
    Draw,
    Drawn,
    Value,
    add_up,
    bump,
    forest,
    log_of,
    pairs,
    shuffled,
    sigmoid,
    tastes,
    with_gaps,
    words,
    zipf,
)

# Regressions: amounts, stars, durations, delays, sums that are mostly zero, counts; and counts as
# columns.


@log_of("numbers", 16_000, 501, """
    let_fast:0.3 rent:value
    district:id agent:id area_m2:number rooms:either built:number floor:either
""", **FEWER)  # fmt: skip
def _rents(world: np.random.Generator) -> Draw:
    """An amount with a long tail, the product of its columns, beside a binary label."""
    districts, agents = words(world, 60), shuffled(world, 150, 1_000, 99_999)
    district, wanted = world.normal(0, 0.4, 60), world.normal(0, 0.7, 60)
    agent = world.normal(0, 0.15, 150)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        d, a = zipf(rng, 60, rows, 0.6), zipf(rng, 150, rows, 0.7)
        area = np.round(rng.lognormal(4.2, 0.5, rows), 1)
        rooms = np.clip(np.round(area / 28 + rng.normal(0, 0.7, rows)), 1, 9).astype(int)
        built, floor = rng.integers(1880, 2025, rows), rng.poisson(2.5, rows)
        log_rent = (
            6.6
            + district[d]
            + agent[a]
            + 0.85 * np.log(area / 65)
            + 0.3 * bump(built, 1905, 12)
            + 0.35 * bump(built, 2020, 14)
            + 0.05 * np.minimum(floor, 4) * (district[d] > 0)
        )
        fast = wanted[d] - 0.8 * np.log(area / 65) + bump(built, 2015, 15) - 0.15 * floor
        rent = np.round(np.exp(log_rent + rng.normal(0, 0.35, rows)), 2)
        return {
            "district": districts[d], "agent": agents[a], "area_m2": with_gaps(rng, area, 0.04),
            "rooms": rooms, "built": built, "floor": floor,
        }, {"let_fast": fast, "rent": Value(np.exp(log_rent + 0.35**2 / 2), rent)}  # fmt: skip

    return draw


@log_of("numbers", 30_000, 502, """
    stars:value
    user:id film:id genre:id film_year:number film_minutes:number user_age:number work:id
    hour:noise
""", **FEWER)  # fmt: skip
def _ratings(world: np.random.Generator) -> Draw:
    """Stars from 1 to 5, alone: biases of users and films, and what a user likes of genres."""
    users, films = shuffled(world, 500, 1, 2_000), shuffled(world, 300, 1, 90_000)
    genres, genre_of = words(world, 12), world.integers(0, 12, 300)
    a, b = tastes(world, 500, 12, 3, 0.9)
    user, film = world.normal(0, 0.8, 500), world.normal(0, 0.8, 300)
    years, minutes = world.integers(1950, 2025, 300), np.round(world.normal(108, 20, 300))
    ages, works, works_at = (
        world.integers(16, 80, 500),
        words(world, 15),
        world.integers(0, 15, 500),
    )

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        u, f = zipf(rng, 500, rows, 0.5), zipf(rng, 300, rows, 0.7)
        likes = user[u] + film[f] + pairs(a, u, b, genre_of[f]) + 0.6 * bump(years[f], 1975, 9)
        likes += 0.5 * np.tanh((ages[u] - 40) / 15) * np.tanh((minutes[f] - 108) / 20)
        above_N4 = sigmoid(likes[:, None] - np.array([-3.0, -1.7, -0.4, 1.4]))
        stars = 1 + (rng.random(rows)[:, None] < above_N4).sum(axis=1)
        return {
            "user": users[u], "film": films[f], "genre": genres[genre_of[f]],
            "film_year": years[f], "film_minutes": minutes[f], "user_age": ages[u],
            "work": works[works_at[u]], "hour": rng.integers(0, 24, rows),
        }, {"stars": Value(1 + above_N4.sum(axis=1), stars)}  # fmt: skip

    return draw


@log_of("numbers", 20_000, 503, """
    minutes:value
    zone_from:id zone_to:id km:number hour:either weekday:either rain_mm:number
""", **FEWER)  # fmt: skip
def _rides(world: np.random.Generator) -> Draw:
    """A duration, alone: distance over a speed that the hour, the zones and the rain decide."""
    zones = shuffled(world, 40, 0, 263)
    slow_from, slow_to = world.normal(0, 0.2, 40), world.normal(0, 0.2, 40)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        i, j = zipf(rng, 40, rows, 0.6), zipf(rng, 40, rows, 0.6)
        km = np.round(rng.gamma(1.4, 3.5, rows) + 0.3, 2)
        hour, weekday = rng.integers(0, 24, rows), rng.integers(0, 7, rows)
        rain = np.where(rng.random(rows) < 0.8, 0, np.round(rng.exponential(4, rows), 1))
        rush = (bump(hour, 8.5, 1.8) + bump(hour, 17.5, 2.2)) * (weekday < 5)
        slowness = slow_from[i] + slow_to[j] + 0.7 * rush + 0.05 * np.minimum(rain, 10)
        mean = 3 + 1.9 * km**0.9 * np.exp(slowness)
        return {
            "zone_from": zones[i], "zone_to": zones[j], "km": km, "hour": hour,
            "weekday": weekday, "rain_mm": rain,
        }, {"minutes": Value(mean, np.round(mean * rng.gamma(12, 1 / 12, rows), 2))}  # fmt: skip

    return draw


@log_of("numbers", 30_000, 504, """
    came:0.97 late:0.25 delay:value
    line:id stop:id hour:either km:number seats:either wind:number sight_km:number
""", seen_when={"late": "came", "delay": "came"}, **FEWER)  # fmt: skip
def _delays(world: np.random.Generator) -> Draw:
    """Minutes around −6 with a tail to the right, beside two binary labels, one of them rare."""
    lines, stops = words(world, 14), shuffled(world, 90, 100, 999)
    line, stop = world.normal(0, 0.5, 14), world.normal(0, 0.4, 90)
    early = world.normal(0, 3, 14)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        c, s = zipf(rng, 14, rows, 0.5), zipf(rng, 90, rows, 0.6)
        hour, km = rng.integers(5, 24, rows), np.round(rng.gamma(2, 400, rows))
        wind = np.round(rng.gamma(3, 4, rows), 1)
        sight = np.where(rng.random(rows) < 0.75, 10, np.round(rng.uniform(0.1, 10, rows), 1))
        storm = 1.6 * ((wind > 18) & (sight < 6)) + 0.9 * (sight < 2)
        trouble = line[c] + stop[s] + 0.13 * (hour - 14) + storm
        held = sigmoid(1.7 * trouble - 1.6)
        usual = -6 + early[c] - 0.004 * (km - 800)
        minutes = usual + rng.normal(0, 9, rows)
        minutes += (rng.random(rows) < held) * rng.exponential(38, rows)
        return {
            "line": lines[c], "stop": stops[s], "hour": hour, "km": km,
            "seats": rng.choice([50, 76, 140, 149, 178, 200], rows),
            "wind": with_gaps(rng, wind, 0.03), "sight_km": sight,
        }, {
            "came": -trouble, "late": 1.3 * trouble + 0.05 * early[c],
            "delay": Value(usual + 38 * held, np.round(minutes)),
        }  # fmt: skip

    return draw


@log_of("numbers", 30_000, 505, """
    visit:0.35 spent:value
    segment:id city:id months_since:either spent_before:number visits_before:either age:number
""", **FEWER)  # fmt: skip
def _baskets(world: np.random.Generator) -> Draw:
    """A sum that is zero for most and has a long tail for the others, beside a binary label."""
    segments, cities = words(world, 9), words(world, 70)
    segment, city = world.normal(0, 0.5, (9, 2)), world.normal(0, 0.35, (70, 2))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        s, c = rng.integers(0, 9, rows), zipf(rng, 70, rows, 0.7)
        months, visits = rng.integers(1, 13, rows), rng.poisson(2.2, rows)
        before = np.where(visits > 0, np.round(rng.lognormal(4, 1, rows) * visits, 2), 0)
        age = rng.integers(18, 85, rows)
        visit = (
            segment[s, 0]
            + city[c, 0]
            - 0.14 * months
            + 0.5 * np.sqrt(visits)
            + 0.9 * bump(age, 38, 13)
        )
        buys = sigmoid(1.3 * visit - 1.6)
        log_sum = 2.6 + segment[s, 1] + city[c, 1] + 0.28 * np.log1p(before) - 0.012 * (age - 45)
        spent = (rng.random(rows) < buys) * np.exp(log_sum + rng.normal(0, 0.6, rows))
        return {
            "segment": segments[s], "city": cities[c], "months_since": months,
            "spent_before": before, "visits_before": visits, "age": age,
        }, {
            "visit": visit,
            "spent": Value(buys * np.exp(log_sum + 0.6**2 / 2), np.round(spent, 2)),
        }  # fmt: skip

    return draw


@log_of("numbers", 16_000, 506, """
    cancelled:0.35 requests:value
    adults:either children:either nights:either stays_before:either changes:either channel:id
    lead_days:number
""", **FEWER)  # fmt: skip
def _stays(world: np.random.Generator) -> Draw:
    """Columns that are counts, whose rare values lie between or beyond frequent ones; and a label
    that is a count."""
    channels = words(world, 7)
    channel = world.normal(0, 0.6, 7)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        adults = 1 + rng.binomial(3, 0.35, rows) + (rng.random(rows) < 0.01) * rng.poisson(9, rows)
        children = (rng.random(rows) < 0.15) * (1 + rng.poisson(0.7, rows))
        nights, before = rng.geometric(0.22, rows), rng.negative_binomial(0.25, 0.06, rows)
        changes, c = rng.negative_binomial(0.4, 0.5, rows), zipf(rng, 7, rows, 0.8)
        lead = np.round(rng.gamma(0.8, 110, rows))
        leaves = (
            channel[c]
            + 0.55 * np.log1p(lead / 20)
            + 0.5 * np.sqrt(nights)
            - 0.9 * np.log1p(before)
            - 0.8 * np.sqrt(changes)
            + 0.35 * np.minimum(adults, 8)
            - 0.5 * ((children > 0) & (nights > 5))
        )
        log_mean = (
            -1.1
            + 0.5 * channel[c]
            + 0.35 * np.log1p(nights)
            + 0.3 * np.log(adults)
            + 0.45 * np.sqrt(children)
            + 0.15 * np.log1p(before)
        )
        return {
            "adults": adults, "children": children, "nights": nights, "stays_before": before,
            "changes": changes, "channel": channels[c], "lead_days": lead,
        }, {
            "cancelled": leaves,
            "requests": Value(np.exp(log_mean), rng.poisson(np.exp(log_mean))),
        }  # fmt: skip

    return draw


# Times: drift, seasons, ids that come and go, running numbers, and days unlike the others.

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


# Interactions of three and four columns, which trees find, beside little that adds up.

_PROBE = 20_000  # rows whose quantiles are the thresholds


@log_of("deep", 40_000, 701, """
    returned:0.2 handling:value
    grams:number width_cm:number height_cm:number km:number stops:either value:number
    days_on_way:either carrier:id
""", **FEWER)  # fmt: skip
def _parcels(world: np.random.Generator) -> Draw:
    """Cuts of depth 3 over seven numbers: a binary label and a cost."""
    carriers = words(world, 9)
    carrier = world.normal(0, 0.3, 9)

    def numbers(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        return {
            "grams": np.round(rng.lognormal(6.5, 0.9, rows)),
            "width_cm": np.round(rng.normal(35, 9, rows), 1),
            "height_cm": np.round(rng.normal(20, 6, rows), 1),
            "km": np.round(rng.gamma(2, 180, rows)),
            "stops": rng.poisson(3, rows).astype(float),
            "value": np.round(rng.lognormal(3.4, 0.8, rows), 2),
            "days_on_way": rng.integers(1, 10, rows).astype(float),
        }

    samples = numbers(np.random.default_rng(world.integers(2**32)), _PROBE)
    returned, cost = (forest(world, samples, 6, 3, 2.2) for _ in range(2))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        columns, c = numbers(rng, rows), rng.integers(0, 9, rows)
        mean = 20 + 4 * (add_up(cost, columns) + carrier[c])
        return {**columns, "carrier": carriers[c]}, {
            "returned": add_up(returned, columns) + carrier[c],
            "handling": Value(mean, np.round(mean + rng.normal(0, 6, rows), 2)),
        }

    return draw


@log_of("deep", 50_000, 702, """
    leak:0.15 shut:0.4
    bar:number celsius:number litres:number age_days:number turns:number supply:either mode:either
""", **FEWER)  # fmt: skip
def _valves(world: np.random.Generator) -> Draw:
    """Cuts of depth 4 over five numbers and two codes; the second label shares half of them."""

    def numbers(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        return {
            "bar": np.round(rng.gamma(5, 2, rows), 2),
            "celsius": np.round(rng.normal(60, 15, rows), 1),
            "litres": np.round(rng.lognormal(2, 0.7, rows), 2),
            "age_days": np.round(rng.exponential(900, rows)),
            "turns": np.round(rng.lognormal(5, 1, rows)),
            "supply": rng.integers(0, 4, rows).astype(float),
            "mode": rng.integers(0, 6, rows).astype(float),
        }

    samples = numbers(np.random.default_rng(world.integers(2**32)), _PROBE)
    leak, shut = (forest(world, samples, 6, 4, 2.4) for _ in range(2))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        columns = numbers(rng, rows)
        first = add_up(leak, columns)
        return columns, {"leak": first, "shut": 0.5 * first + add_up(shut, columns)}

    return draw


# A whole number that is nearly one a row, so that half of its values are unseen, beside columns
# that mostly add up.
# Taken for ids, its embeddings learn rows by heart, and the best weights are those before the first
# epoch.

_TRAINED = 0.8  # of the rows
_BANDS = 24
_BANDS_PROBE = 50_000  # rows whose scores are cut into bands


class _NearlyUnique:
    """Whole numbers of which training rows leave half unseen, as a survey weighs its answers.

    A number is given to rows of one band of a score of other columns. So, read as ids, it foretells
    what the score does, and nothing that those columns do not say.
    """

    def __init__(self, world: np.random.Generator, rows: int, scores_P: np.ndarray) -> None:
        values = world.lognormal(12, 0.5, int(_TRAINED * rows / np.log(2)))
        self.numbers = world.permutation(np.unique(np.round(values).astype(np.int64)))
        self.edges = np.quantile(scores_P, np.arange(1, _BANDS) / _BANDS)

    def of(self, rng: np.random.Generator, scores_N: np.ndarray) -> np.ndarray:
        """Returns a number for each row."""
        at_N = (np.searchsorted(self.edges, scores_N) + rng.random(len(scores_N))) / _BANDS
        return self.numbers[(at_N * len(self.numbers)).astype(int)]


@log_of("memory", 32_000, 703, """
    rich:0.24 never_married:0.33
    age:number popwgt:noise work:id schooling:id years_of_school:either tie:id job:id gain:number
    hours:number land:id
""", **FEWER)  # fmt: skip
def _earners(world: np.random.Generator) -> Draw:
    """A census: most of it adds up; what school is worth depends on age, job and tie."""
    works, schools, ties = words(world, 8), words(world, 16), words(world, 7)
    jobs, lands = words(world, 14), words(world, 40)
    work, job, land = world.normal(0, 0.3, 8), world.normal(0, 0.6, 14), world.normal(0, 0.3, 40)
    tie, school_of_job = world.normal(0, 0.9, 7), world.normal(0, 0.7, 14)
    single, slope = world.normal(0, 0.8, 7), world.normal(0, 0.6, 14)

    def people(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, ...]:
        """Ages, ties and years of school."""
        school = np.clip(np.round(rng.normal(9.5, 2.6, rows)), 1, 16).astype(int)
        return np.round(17 + 73 * rng.beta(1.6, 3.0, rows)), zipf(rng, 7, rows, 0.7), school

    def score(age: np.ndarray, t: np.ndarray, school: np.ndarray) -> np.ndarray:
        """By which people get their weights."""
        return single[t] - 0.11 * (age - 38) - 0.5 * (school - 9.5)

    probe = people(np.random.default_rng(world.integers(2**32)), _BANDS_PROBE)
    weights = _NearlyUnique(world, 32_000, score(*probe))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        age, t, school = people(rng, rows)
        w, j, c = zipf(rng, 8, rows, 1.2), rng.integers(0, 14, rows), zipf(rng, 40, rows, 1.5)
        hours = np.clip(np.round(rng.normal(40, 11, rows)), 1, 99)
        gain = np.where(rng.random(rows) < 0.08, np.round(rng.lognormal(8.5, 1.1, rows)), 0)
        learned = (school - 9.5) / 2.6
        rich = (
            1.3 * bump(age, 48, 18)
            + 1.1 * learned
            + tie[t]
            + job[j]
            + work[w]
            + land[c]
            + 0.03 * (hours - 40)
            + 0.25 * np.log1p(gain)
            + 0.35 * learned * (np.tanh((age - 38) / 10) + school_of_job[j])
            + 0.3 * tie[t] * ((age > 32) & (hours > 38))
        )
        never = (
            single[t]
            - 0.11 * (age - 38)
            - 0.3 * job[j]
            + 0.45 * np.tanh((age - 35) / 8) * slope[j]
            + 0.3 * learned * (age < 33)
        )
        return {
            "age": age, "popwgt": weights.of(rng, score(age, t, school)),
            "work": works[w], "schooling": schools[school - 1], "years_of_school": school,
            "tie": ties[t], "job": jobs[j], "gain": gain, "hours": hours, "land": lands[c],
        }, {"rich": rich, "never_married": never}  # fmt: skip

    return draw


@log_of("memory", 20_000, 704, """
    leaves:0.2 takes_more:0.1
    account_no:noise product:id branch:id balance:number visits:either tenure_months:number
    letters:either
""", **FEWER)  # fmt: skip
def _accounts(world: np.random.Generator) -> Draw:
    """A number of an account that some rows share, beside products that react differently."""
    products, branches = words(world, 10), shuffled(world, 80, 100, 999)
    product, branch = world.normal(0, 0.8, 10), world.normal(0, 0.4, 80)
    by_visits, by_balance = world.normal(0, 0.6, 10), world.normal(0, 0.6, 10)

    def held(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Products, months of tenure, and the score by which accounts get their numbers."""
        p, tenure = rng.integers(0, 10, rows), np.round(rng.exponential(40, rows))
        return p, tenure, product[p] - 0.02 * tenure

    probe = held(np.random.default_rng(world.integers(2**32)), _BANDS_PROBE)[2]
    numbers = _NearlyUnique(world, 20_000, probe)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        p, tenure, score = held(rng, rows)
        b, balance = zipf(rng, 80, rows, 0.6), np.round(rng.lognormal(7, 1.3, rows), 2)
        visits, letters = rng.poisson(3, rows), rng.integers(0, 6, rows)
        wealth, seen = (np.log(balance) - 7) / 1.3, (visits - 3) / 1.7
        react = by_visits[p] * seen + by_balance[p] * wealth
        leaves = score + branch[b] - 0.5 * wealth - 0.3 * seen + 0.5 * react
        more = -0.4 * leaves + 0.65 * react + 0.2 * letters + 0.5 * product[p]
        return {
            "account_no": numbers.of(rng, score), "product": products[p],
            "branch": branches[b], "balance": balance, "visits": visits,
            "tenure_months": tenure, "letters": letters,
        }, {"leaves": leaves, "takes_more": more}  # fmt: skip

    return draw
