"""Binary labels: additive truths, cuts, pairs of ids, causes that tasks share."""

import numpy as np

from benchmarks.first_try.logs.worlds import (
    Draw,
    Drawn,
    add_up,
    bump,
    forest,
    hashes,
    log_of,
    pairs,
    shuffled,
    tastes,
    with_gaps,
    words,
    zipf,
)

# Additive truths: every column moves a label by itself.

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


# Truths of cuts: a label jumps where several columns pass their thresholds together.

_TREES_PROBE = 20_000  # rows whose quantiles are the thresholds


@log_of("trees", 30_000, 201, """
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


@log_of("trees", 50_000, 202, """
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


@log_of("trees", 100_000, 203, """
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


@log_of("trees", 1_500, 204, """
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


# Truths of pairs: what an id of one column likes of another's.


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


# Truths that tasks share: a few hidden causes, mixed differently for each label.


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
