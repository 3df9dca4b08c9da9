"""Truths of pairs: what an id of one column likes of another's."""

import numpy as np

from benchmarks.first_try.logs.log import EITHER, ID, NUMBER, Draw, Drawn, Log
from benchmarks.first_try.logs.pieces import bump, hashes, shuffled, words, zipf


def _tastes(
    world: np.random.Generator, left: int, right: int, width: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of two columns' ids; a pair's effect is their inner product."""
    a, b = world.normal(0, 1, (left, width)), world.normal(0, 1, (right, width))
    return a * (scale / width**0.5), b


def _pairs(left: np.ndarray, i: np.ndarray, right: np.ndarray, j: np.ndarray) -> np.ndarray:
    return np.einsum("nk,nk->n", left[i], right[j])


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
        return Drawn(
            columns={
                "userid": users[i],
                "asin": items[j],
                "item_price": np.round(prices[j] * rng.choice([1, 1, 1, 0.9, 0.8], rows), 2),
                "user_score": score,
                "video_duration": seconds,
                "site_visits": visits,
            },
            logits={"viewed": seen, "cart": cart},
        )

    return draw


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
        return Drawn(
            columns={
                "msno": listeners[i],
                "song": songs[j],
                "source": sources[s],
                "length_s": length,
            },
            logits={"again": again, "skipped": skipped + 0.01 * (length - 210)},
        )

    return draw


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
        return Drawn(
            columns={
                "q": queries[q],
                "doc": documents[d],
                "doc_kind": kinds[d],
                "place": place,
                "device": device,
                "doc_words": longs[d],
            },
            logits={"click": click, "long_dwell": dwell},
        )

    return draw


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
        return Drawn(
            columns={"trade": trades[i], "zip": towns[j], "pay": pay, "days_open": days},
            logits={
                "sent": sent,
                "answered": 0.5 * sent + 0.7 * _pairs(a, i, b, (j * 7) % 90) + 0.3 * trade[i],
            },
        )

    return draw


LOGS = [
    Log(
        name="shop",
        family="factors",
        rows=200_000,
        rates={"viewed": 0.3, "cart": 0.08},
        kinds={
            "userid": ID,
            "asin": ID,
            "item_price": NUMBER,
            "user_score": NUMBER,
            "video_duration": NUMBER,
            "site_visits": EITHER,
        },
        build=_shop,
        seed=301,
    ),
    Log(
        name="songs",
        family="factors",
        rows=100_000,
        rates={"again": 0.5, "skipped": 0.25},
        kinds={"msno": ID, "song": ID, "source": ID, "length_s": NUMBER},
        build=_songs,
        seed=302,
    ),
    Log(
        name="queries",
        family="factors",
        rows=400_000,
        rates={"click": 0.1, "long_dwell": 0.3},
        kinds={
            "q": ID,
            "doc": ID,
            "doc_kind": ID,
            "place": EITHER,
            "device": EITHER,
            "doc_words": NUMBER,
        },
        build=_queries,
        seed=303,
    ),
    Log(
        name="jobs",
        family="factors",
        rows=40_000,
        rates={"sent": 0.15, "answered": 0.3},
        kinds={"trade": ID, "zip": ID, "pay": NUMBER, "days_open": NUMBER},
        build=_jobs,
        seed=304,
    ),
]
