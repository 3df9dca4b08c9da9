"""Interactions of three and four columns, which trees find, beside little that adds up."""

import numpy as np

from benchmarks.first_try.logs.worlds import (
    FEWER,
    Draw,
    Drawn,
    Value,
    add_up,
    forest,
    log_of,
    words,
)

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
