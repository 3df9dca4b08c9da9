"""A log of a big domain and four small ones, which weigh the same signals differently."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

TASKS = ("click", "buy")
BIG, SMALL = "feed", ("live", "search", "shop", "story")
SHARE = 0.01  # of the rows, of each small domain
TEST_ROWS = 4_000  # of each small domain, beside the log
SIZES: Mapping[str, int] = {"campaign": 40, "site": 40, "city": 30, "hour": 24}
NUMBERS = ("price", "age", "depth")
_SIGNALS = 6
_SPREAD = 1.5  # standard deviation of a logit
_RATES = {"click": -1.0, "buy": -1.6}


@dataclass(frozen=True)
class DomainWorld:
    """A log to train on, with a column `scene`; test rows of the small domains.

    Attributes:
        log: Rows.
        test: Others.
        truth: By task, the true probabilities of the test rows.
    """

    log: pa.Table
    test: pa.Table
    truth: Mapping[str, np.ndarray]


def draw_domains(seed: int, correlation: float, rows: int) -> DomainWorld:
    """Draws them; logits of one row in two domains have a correlation of about `correlation`.

    A logit of domain m is `Σ_k a[m, k] · signal_k(x)`, of signals that are the same everywhere:
    effects of single ids, of pairs of ids that meet in hidden numbers, and waves over numbers. What
    a domain's rows have in common with others' is what the signals are; how much each counts is
    its own.
    """
    rng = np.random.default_rng(seed)
    small = round(rows * SHARE)
    scenes = np.repeat([BIG, *SMALL], [rows - small * len(SMALL), *[small] * len(SMALL)])
    scenes = np.concatenate([rng.permutation(scenes), np.repeat(SMALL, TEST_ROWS)])
    count = len(scenes)
    ids = {name: rng.integers(size, size=count) for name, size in SIZES.items()}
    numbers = {name: rng.normal(size=count) for name in NUMBERS}
    signals_KN = np.stack([_signal(rng, ids, numbers, k) for k in range(_SIGNALS)])
    columns = {"scene": pa.array(scenes)} | {
        name: pa.array([f"{name}{i}" for i in own]) for name, own in ids.items()
    }
    truth = {}
    for task in TASKS:
        logit_N, common_K = np.zeros(count), rng.normal(size=_SIGNALS)
        for scene in (BIG, *SMALL):
            mine = scenes == scene
            own_K = rng.normal(size=_SIGNALS)
            weights_K = correlation**0.5 * common_K + (1 - correlation) ** 0.5 * own_K
            mixed = weights_K / np.linalg.norm(weights_K) @ signals_KN[:, mine]
            logit_N[mine] = _RATES[task] + 0.3 * rng.normal() + _SPREAD * mixed
        truth[task] = 1 / (1 + np.exp(-logit_N))
        columns[task] = pa.array((rng.random(count) < truth[task]).astype(np.int8))
    table = pa.table({**columns, **numbers})
    return DomainWorld(table[:rows], table[rows:], {t: p[rows:] for t, p in truth.items()})


def _signal(
    rng: np.random.Generator,
    ids: Mapping[str, np.ndarray],
    numbers: Mapping[str, np.ndarray],
    k: int,
) -> np.ndarray:
    names = list(ids)
    if k < len(names):
        one, two = names[k], names[(k + 1) % len(names)]
        effect_N = rng.normal(size=SIZES[one])[ids[one]]
        of_one, of_two = (rng.normal(size=(SIZES[name], 2))[ids[name]] for name in (one, two))
        effect_N = effect_N + (of_one * of_two).sum(1)
    else:
        effect_N = sum(
            np.sin(rng.uniform(1, 3) * x_N + rng.uniform(0, 6)) for x_N in numbers.values()
        )
    assert isinstance(effect_N, np.ndarray)
    return (effect_N - effect_N.mean()) / effect_N.std()
