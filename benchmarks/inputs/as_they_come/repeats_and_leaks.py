"""Rows that come twice and leaks beyond single columns: what is seen, and what is alarmed falsely.

What is honest: Census, Hillstrom (where they are at hand) and the generated logs of `first_try`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from benchmarks.first_try.logs import LOGS
from benchmarks.first_try.race import REAL, table_of
from benchmarks.inputs.section import Measured
from benchmarks.racing.harness import Target
from benchmarks.same_bits.cases import DATA
from mmoe.config import RunConfig
from mmoe.datasets import infer_config, load_recipe, load_splits
from mmoe.datasets.infer.config import Reasons
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.rows.repeats import RepeatCounter
from mmoe.train.alarms import alarm_of_copies

TARGETS: dict[str, Target | None] = {
    "repeated_seen": Target(1.0),
    "repeated_false": Target(0.0, at_most=True),
    "leaks_false": Target(0.0, at_most=True),
    "leaks_missed": Target(0.0, at_most=True),
}
_ROWS = 6_000
_WORDS = ("predict", "holds the row's own", "its events are those of")  # of leaks, by init


def measure(seeds: Sequence[int], say: Callable[[str], None]) -> Measured:
    """Looks at the made logs with the first seed, and at the honest ones."""
    seed = seeds[0]
    repeated = {name: all(_alarmed(table, ["click"])) for name, table in _repeated(seed)}
    say(f"  repeated: {sum(repeated.values())} of {len(repeated)} seen")
    missed = {name: _missed(table, planted) for name, table, planted in _leaking(seed)}
    say(f"  leaks: {sum(missed.values())} of {len(missed)} missed")
    false: dict[str, bool] = {}
    leaks: dict[str, list[str]] = {}
    for name, table, labels in _honest(say):
        false[name] = any(_alarmed(table, labels))
        leaks[name] = _leaks(infer_config(table, labels)[1])
        say(f"  {name}: repeated {false[name]}, leaks {leaks[name]}")
    values = {
        "repeated_seen": sum(repeated.values()) / len(repeated),
        "repeated_false": float(sum(false.values())),
        "leaks_false": float(sum(map(len, leaks.values()))),
        "leaks_missed": float(sum(missed.values())),
    }
    details = {"repeated": repeated, "missed": missed, "false": false, "leaks": leaks}
    return Measured(values, details)


def _alarmed(table: pa.Table, labels: Sequence[str]) -> tuple[bool, bool]:
    """Whether `init` says it, and whether training's alarm does where such rows are kept."""
    config, reasons = infer_config(table, labels)
    kept = config.model_copy(
        update={"data": config.data.model_copy(update={"repeated_rows": "keep"})}
    )
    return bool(reasons.repeated), _counted(kept, table)


def _counted(config: RunConfig, table: pa.Table) -> bool:
    splits = load_splits(config, table)
    counter = RepeatCounter(table.num_rows, column_uses(config, table.column_names))
    for number, rows in enumerate((splits.train, splits.validation, splits.test)):
        counter.add(number, rows)
    return bool(alarm_of_copies(counter.finish(), config))


def _leaks(reasons: Reasons) -> list[str]:
    return [name for name, why in reasons.left_out if any(word in why for word in _WORDS)]


def _missed(table: pa.Table, planted: set[str]) -> bool:
    return not planted <= set(_leaks(infer_config(table, ["click"])[1]))


def _honest(say: Callable[[str], None]) -> Iterator[tuple[str, pa.Table, list[str]]]:
    for name, folder in REAL.items():
        if not (DATA / folder).is_dir():
            say(f"  {name}: not at {DATA}, left out")
            continue
        recipe = load_recipe(name)
        splits = load_splits(recipe, DATA / folder)
        rows = pa.concat_tables([splits.train, splits.validation, splits.test])
        yield name, table_of(recipe, rows, splits.origin), [task.name for task in recipe.tasks]
    for name, log in LOGS.items():
        yield name, log.training(), list(log.rates)


def _log(seed: int, rows: int = _ROWS) -> dict[str, np.ndarray]:
    """Users, items and a price beside coin flips."""
    rng = np.random.default_rng(seed)
    return {
        "user": rng.integers(0, 900, rows),
        "item": rng.integers(0, 400, rows),
        "price": rng.gamma(2, 10, rows).round(2),
        "hour": rng.integers(0, 24, rows),
        "click": rng.integers(0, 2, rows),
    }


def _repeated(seed: int) -> Iterator[tuple[str, pa.Table]]:
    rng, rows = np.random.default_rng([seed, 1]), pa.table(_log(seed))

    def take(numbers: np.ndarray) -> pa.Table:
        return rows.take(pa.array(numbers))

    every = np.arange(_ROWS)
    some = rng.choice(_ROWS, int(0.4 * _ROWS), replace=False)
    yield "40 % again", pa.concat_tables([rows, take(some)])
    yield "twice", pa.concat_tables([rows, rows])
    yield "twice, in another order", pa.concat_tables([rows, take(rng.permutation(every))])
    yield "5 % again, beside the row", take(np.sort(np.append(every, some[: _ROWS // 20])))
    yield "retries", take(np.repeat(every, rng.geometric(0.8, _ROWS)))
    click = np.asarray(rows["click"])
    positives = rng.choice(np.flatnonzero(click), 600, replace=False)
    yield "positives five times", take(np.append(every, np.tile(positives, 4)))
    numbered = rows.append_column("row", pa.array(every * 3 + 11))
    yield (
        "40 % again, with row numbers",
        pa.concat_tables([numbered, numbered.take(pa.array(some))]),
    )
    few = rows.select(["user", "item", "click"])
    yield "twice, three columns", pa.concat_tables([few, few])


def _leaking(seed: int) -> Iterator[tuple[str, pa.Table, set[str]]]:
    """Four histories, four sequences, four pairs."""
    log = _log(seed)
    rng, item, click = np.random.default_rng([seed, 2]), log["item"], log["click"]
    before = [rng.integers(0, 400, n).tolist() for n in rng.integers(0, 9, _ROWS)]
    own = [[int(i)] * int(c) for i, c in zip(item, click, strict=True)]
    last = [[*b, *o] for b, o in zip(before, own, strict=True)]
    first = [[*o, *b] for b, o in zip(before, own, strict=True)]
    known = [
        [int(i), *b] if n % 3 == 0 else b for n, (i, b) in enumerate(zip(item, last, strict=True))
    ]
    histories: Mapping[str, list] = {
        "history, at its end": last,
        "history, at its start": first,
        "history that often holds it anyway": known,
        "history in text": ["|".join(map(str, one)) for one in last],
    }
    for name, seen in histories.items():
        yield name, pa.table({**log, "seen": seen}), {"seen"}
    kinds = [[i % 7 for i in one] for one in last]
    yield (
        "sequence of two columns",
        pa.table({**log, "seen": last, "kinds": kinds}),
        {"seen", "kinds"},
    )
    at = 1_700_000_000 + np.sort(rng.integers(0, 10**7, _ROWS))
    times = [
        [*(int(t) - 60 * (n + 1) for n in range(len(b))[::-1]), *[int(t)] * int(c)]
        for t, b, c in zip(at, before, click, strict=True)
    ]
    yield "sequence of times", pa.table({**log, "at": at, "times": times}), {"times"}
    was = [[*(i % 2 for i in b), int(c)] for b, c in zip(before, click, strict=True)]
    yield "sequence of labels", pa.table({**log, "was": was}), {"was"}
    long = [
        one[: 2 + 3 * int(c)] + [0] * (2 + 3 * int(c) - len(one))
        for one, c in zip(before, click, strict=True)
    ]
    yield "sequence by its length", pa.table({**log, "seen": long}), {"seen"}
    yield from _pairs(log, rng)


def _pairs(
    log: dict[str, np.ndarray], rng: np.random.Generator
) -> Iterator[tuple[str, pa.Table, set[str]]]:
    click = log["click"]
    bit = rng.integers(0, 2, _ROWS)
    yield "pair, one or the other", pa.table({**log, "a": bit, "b": bit ^ click}), {"a", "b"}
    sent = rng.normal(0, 100, _ROWS)
    paid = sent + np.where(click == 1, 1, -1) * rng.gamma(2, 1, _ROWS)
    yield "pair, the later one", pa.table({**log, "a": sent, "b": paid}), {"a", "b"}
    kind = rng.integers(0, 4, _ROWS)
    state = (kind + np.where(click == 1, 0, rng.integers(1, 4, _ROWS))) % 4
    words = [f"w{n}" for n in kind], [f"s{n}" for n in state]
    yield "pair, the same words", pa.table({**log, "a": words[0], "b": words[1]}), {"a", "b"}
    sign = rng.integers(0, 2, _ROWS)
    size = np.where(click == sign, 1, -1) * rng.gamma(2, 1, _ROWS)
    yield "pair, a sign and a number", pa.table({**log, "a": sign, "b": size}), {"a", "b"}
