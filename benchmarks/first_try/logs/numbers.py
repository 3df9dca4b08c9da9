"""Regressions: amounts, stars, durations, delays, sums that are mostly zero, counts; and counts as
columns."""

import numpy as np

from benchmarks.first_try.logs.worlds import (
    FEWER,
    Draw,
    Drawn,
    Value,
    bump,
    log_of,
    pairs,
    shuffled,
    sigmoid,
    tastes,
    with_gaps,
    words,
    zipf,
)


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
