"""Truths of pairs: what an id of one column likes of another's."""

import numpy as np

from benchmarks.first_try.logs.worlds import (
    Draw,
    Drawn,
    bump,
    hashes,
    log_of,
    pairs,
    shuffled,
    tastes,
    words,
    zipf,
)


@log_of("factors", 200_000, 301, """
    viewed:0.3 cart:0.08
    userid:id asin:id item_price:number user_score:number video_duration:number
    site_visits:either
""")  # fmt: skip
def _shop(world: np.random.Generator) -> Draw:
    """Customers and goods as whole numbers; names of numbers hold words for ids."""
    users, items = shuffled(world, 2_000, 0, 2_000), shuffled(world, 800, 100_000, 999_999)
    a, b = tastes(world, 2_000, 800, 3, 1.0)
    c, d = tastes(world, 2_000, 800, 3, 0.7)
    user, item = world.normal(0, 0.5, 2_000), world.normal(0, 0.5, 800)
    prices = np.round(world.lognormal(3, 0.8, 800), 2)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        i, j = zipf(rng, 2_000, rows, 0.6), zipf(rng, 800, rows, 0.8)
        seconds = np.round(rng.gamma(2, 30, rows))
        visits = rng.poisson(4, rows)
        score = np.round(rng.normal(0, 1, rows), 3)
        seen = user[i] + item[j] + pairs(a, i, b, j) + 0.5 * score
        cart = 0.6 * seen + pairs(c, i, d, j) - 0.3 * np.log(prices[j]) + bump(seconds, 60, 30)
        return {
            "userid": users[i], "asin": items[j],
            "item_price": np.round(prices[j] * rng.choice([1, 1, 1, 0.9, 0.8], rows), 2),
            "user_score": score, "video_duration": seconds, "site_visits": visits,
        }, {"viewed": seen, "cart": cart}  # fmt: skip

    return draw


@log_of("factors", 100_000, 302, """
    again:0.5 skipped:0.25
    msno:id song:id source:id length_s:number
""")  # fmt: skip
def _songs(world: np.random.Generator) -> Draw:
    """Text ids; a source that changes what a listener wants."""
    listeners, songs, sources = hashes(world, 1_500), words(world, 600), words(world, 6)
    a, b = tastes(world, 1_500, 600, 4, 0.9)
    c, d = tastes(world, 6, 600, 2, 0.7)
    listener, song = world.normal(0, 0.4, 1_500), world.normal(0, 0.5, 600)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        i, j, s = zipf(rng, 1_500, rows, 0.5), zipf(rng, 600, rows, 0.7), rng.integers(0, 6, rows)
        again = listener[i] + song[j] + pairs(a, i, b, j) + pairs(c, s, d, j)
        skipped = -0.8 * again + 0.8 * pairs(c, s, d, j) + 0.5 * listener[i]
        length = np.round(rng.normal(210, 45, rows))
        return {"msno": listeners[i], "song": songs[j], "source": sources[s], "length_s": length}, {
            "again": again,
            "skipped": skipped + 0.01 * (length - 210),
        }

    return draw


@log_of("factors", 400_000, 303, """
    click:0.1 long_dwell:0.3
    q:id doc:id doc_kind:id place:either device:either doc_words:number
""")  # fmt: skip
def _queries(world: np.random.Generator) -> Draw:
    """400,000 rows; a query wants a kind of document, a device another length."""
    queries, documents = shuffled(world, 1_200, 1, 2**31), shuffled(world, 3_000, 1, 2**31)
    kinds = world.integers(0, 40, 3_000)
    a, b = tastes(world, 1_200, 40, 4, 1.0)
    query, document = world.normal(0, 0.4, 1_200), world.normal(0, 0.5, 3_000)
    longs = np.round(world.lognormal(6.5, 0.7, 3_000))

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        q, d = zipf(rng, 1_200, rows, 0.9), zipf(rng, 3_000, rows, 0.8)
        place = rng.integers(1, 11, rows)
        device = rng.integers(0, 3, rows)
        fits = pairs(a, q, b, kinds[d])
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


@log_of("factors", 40_000, 304, """
    sent:0.15 answered:0.3
    trade:id zip:id pay:number days_open:number
""")  # fmt: skip
def _jobs(world: np.random.Generator) -> Draw:
    """Small cardinalities, 40,000 rows: a trade and a town decide together."""
    trades, towns = words(world, 60), shuffled(world, 90, 10_000, 99_999)
    a, b = tastes(world, 60, 90, 3, 1.1)
    trade, town = world.normal(0, 0.4, 60), world.normal(0, 0.4, 90)

    def draw(rng: np.random.Generator, rows: int, late: bool) -> Drawn:
        i, j = rng.integers(0, 60, rows), rng.integers(0, 90, rows)
        pay = np.round(rng.lognormal(10.5, 0.4, rows), -2)
        days = rng.geometric(0.08, rows)
        sent = trade[i] + town[j] + pairs(a, i, b, j) + 0.8 * np.log(pay / 36_000) - 0.03 * days
        return {"trade": trades[i], "zip": towns[j], "pay": pay, "days_open": days}, {
            "sent": sent,
            "answered": 0.5 * sent + 0.7 * pairs(a, i, b, (j * 7) % 90) + 0.3 * trade[i],
        }

    return draw
