"""Truths of cuts: a label jumps where several columns pass their thresholds together."""

import numpy as np

from benchmarks.first_try.logs.worlds import Draw, Drawn, add_up, forest, log_of, with_gaps, words

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
