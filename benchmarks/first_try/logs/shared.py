"""Truths that tasks share: a few hidden causes, mixed differently for each label."""

import numpy as np

from benchmarks.first_try.logs.worlds import (
    Draw,
    Drawn,
    bump,
    log_of,
    shuffled,
    with_gaps,
    words,
    zipf,
)


@log_of("shared", 80_000, 401, """
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


@log_of("shared", 120_000, 402, """
    play:0.4 finish:0.3 like:0.1
    ts:time video_no:id maker:id video_seconds:number battery:noise
""", seen_when={"finish": "play"}, by_time=True)  # fmt: skip
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


@log_of("shared", 60_000, 403, """
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


@log_of("shared", 10_000, 404, """
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
