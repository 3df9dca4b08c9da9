"""A whole number that is nearly one a row, so that half of its values are unseen, beside columns
that mostly add up.

Taken for ids, its embeddings learn rows by heart, and the best weights are those before the first
epoch.
"""

import numpy as np

from benchmarks.first_try.logs.worlds import FEWER, Draw, Drawn, bump, log_of, shuffled, words, zipf

_TRAINED = 0.8  # of the rows
_BANDS = 24
_PROBE = 50_000  # rows whose scores are cut into bands


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

    probe = people(np.random.default_rng(world.integers(2**32)), _PROBE)
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

    probe = held(np.random.default_rng(world.integers(2**32)), _PROBE)[2]
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
