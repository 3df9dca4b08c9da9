"""What sharing costs or gains in quality."""

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks.inputs.section import log_loss, predictions, split_rows
from benchmarks.racing.harness import Race, Result, Spread, Target
from benchmarks.sharing.steps import Bench
from mmoe.config import GATES, config_from_dict
from mmoe.config.gates import SelectingGateConfig
from mmoe.datasets.rows.splits import Splits
from mmoe.mixture import GateOutput, TopKGate
from mmoe.mixture.gates.select import Votes
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.traits import GateTraits
from mmoe.ops import joint_select, topk_gate

# A log of twelve labels whose true probabilities are known, and how alike they are is a number

TASKS = tuple(f"task{number:02d}" for number in range(1, 13))
TRAIN_SHARE = 0.75  # of the rows; a tenth of it validates, the rest tests
SIZES: Mapping[str, int] = {
    "campaign": 120, "site": 150, "city": 60, "hour": 24, "format": 8, "device": 6
}  # fmt: skip
_PAIRS = (("campaign", "site"), ("campaign", "city"), ("site", "device"), ("hour", "format"))
_HIDDEN = 3  # numbers that the ids of a pair meet in
_RATES = np.linspace(-2.0, 0.5, len(TASKS))  # logits of the labels' rates
_SPREAD = 1.5  # standard deviation of a logit


@dataclass(frozen=True)
class World:
    log: pa.Table
    truth: Mapping[str, np.ndarray]


def draw_world(seed: int, correlation: float, rows: int) -> World:
    rng = np.random.default_rng(seed)
    ids = {name: rng.integers(size, size=rows) for name, size in SIZES.items()}
    numbers = {name: rng.normal(size=rows) for name in ("price", "age")}
    shared = _signal(rng, ids, numbers)
    truth, columns = {}, {name: pa.array(_names(name, own)) for name, own in ids.items()}
    for task, rate in zip(TASKS, _RATES, strict=True):
        own = _signal(rng, ids, numbers)
        own -= np.mean(own * shared) * shared
        mixed = correlation**0.5 * shared + (1 - correlation) ** 0.5 * own / own.std()
        truth[task] = 1 / (1 + np.exp(-(rate + _SPREAD * mixed)))
        columns[task] = pa.array((rng.random(rows) < truth[task]).astype(np.int8))
    return World(pa.table({**columns, **numbers}), truth)


def _signal(
    rng: np.random.Generator, ids: Mapping[str, np.ndarray], numbers: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Effects of single columns, of pairs that meet in hidden numbers, and bumps over numbers."""
    parts = [rng.normal(size=SIZES[name])[own] for name, own in ids.items()]
    for a, b in _PAIRS:
        of_a, of_b = (rng.normal(size=(SIZES[name], _HIDDEN))[ids[name]] for name in (a, b))
        parts.append((of_a * of_b).sum(1))
    parts += [np.sin(2 * x + rng.uniform(0, 6)) for x in numbers.values()]
    total = sum((part - part.mean()) / part.std() for part in parts)
    assert isinstance(total, np.ndarray)
    return (total - total.mean()) / total.std()


def _names(name: str, numbers: np.ndarray) -> np.ndarray:
    return np.array([f"{name}{i}" for i in range(SIZES[name])])[numbers]


# The control: gates whose shared picks are drawn at random for every row


class RandomSharedGate(TopKGate):
    """Shares `shared_k` experts that nobody chose, and picks the rest as each gate likes."""

    def __init__(
        self,
        input_dim: int,  # Width of what the gates read
        num_gates: int,  # G
        num_experts: int,
        *,
        shared_k: int,  # Experts that a row's gates share, by chance
        k: int,  # All picks of a gate
        **options: Any,
    ) -> None:
        super().__init__(input_dim, num_gates, num_experts, k=k, **options)
        self.shared_k = shared_k
        most = shared_k + num_gates * (k - shared_k)
        self.traits = GateTraits(k=k, shared_k=shared_k, most_pairs=most)

    def forward(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        rows: Inputs | None = None,
        votes: Votes | None = None,
    ) -> GateOutput:
        assert self.k is not None, "it picks"
        logits_BGE = self.logits(inputs, rows)
        luck_BGE = torch.rand_like(logits_BGE[:, :1].detach()).expand_as(logits_BGE)
        shared_BGE = joint_select(luck_BGE, visibility_GE, shared_k=self.shared_k, private_k=0)
        others_BGE = logits_BGE.detach().softmax(-1).masked_fill(shared_BGE, 0)
        private_k = self.k - self.shared_k
        own_BGE = joint_select(others_BGE, visibility_GE, private_k=private_k)
        left_BGE = logits_BGE.masked_fill(~(shared_BGE | own_BGE), -torch.inf)
        weights_BGK, experts_BGK = topk_gate(left_BGE, visibility_GE, self.k)
        return GateOutput(weights_BGK, experts_BGK, {})


class RandomSharedConfig(SelectingGateConfig):
    kind: Literal["random_shared"] = "random_shared"

    def keywords(self) -> dict[str, Any]:
        return {"shared_k": self.shares, "k": self.picks}

    def selection(self) -> None:
        """It has its own."""


@contextmanager
def known() -> Generator[None]:
    GATES.add("random_shared", RandomSharedConfig, RandomSharedGate)
    try:
        yield
    finally:
        GATES.remove("random_shared")


# What deciding together costs in quality: log-loss at equal computed pairs, on oracle data

CORRELATIONS = (0.2, 0.5, 0.9)
EXPERTS, HIDDEN = 64, (32, 16)
SHARED, PRIVATE, BUDGET = 3, 1, 12  # a budget that has room for every first choice
PAIRS = SHARED + PRIVATE * len(TASKS)  # of a row, at most, of joint picks
_JOINT = {"select": "joint", "shared_k": SHARED, "private_k": PRIVATE}
# Name → its `model` section
MODELS: Mapping[str, Mapping[str, Any]] = {
    "alone, k 1": {"gate": {"kind": "top_k", "k": 1}},
    "alone, k 2": {"gate": {"kind": "top_k", "k": 2}},
    "joint": {"gate": {"kind": "top_k", **_JOINT}},
    "budget": {"gate": {"kind": "top_k", "k": 4, "select": "budget", "budget": BUDGET}},
    "random": {"gate": {"kind": "random_shared", **_JOINT}},
    # Of as many products a row as joint picks have at most
    "dense MMoE": {"num_experts": PAIRS, "gate": {"kind": "softmax"}},
    "Shared-Bottom": {
        "kind": "shared_bottom",
        "expert": {"hidden": [HIDDEN[0] * PAIRS, HIDDEN[1]]},
    },
}
TOGETHER = ("joint", "budget")


@dataclass(frozen=True)
class Found:
    """What one training reached."""

    losses: Mapping[str, float]  # By task, expected over labels, less the oracle's
    pairs: float  # Distinct pairs of row and expert, for each test row

    @property
    def loss(self) -> float:
        return float(np.mean(list(self.losses.values())))


def qualities(bench: Bench) -> list[Result]:
    gaps: dict[str, list[float]] = {name: [] for name in (*TOGETHER, "random")}
    others: dict[str, list[float]] = {name: [] for name in ("dense MMoE", "Shared-Bottom")}
    by_task: dict[str, list[list[float]]] = {name: [] for name in TOGETHER}
    details: list[dict[str, Any]] = []
    for seed in range(bench.seeds):
        with known():
            of_seed = [trained(MODELS, seed, correlation, bench) for correlation in CORRELATIONS]
        for name in gaps:
            gaps[name].append(float(np.mean([1e4 * _gain(found, name) for found in of_seed])))
        for name in others:
            less = [1e4 * (found[name].loss - found["joint"].loss) for found in of_seed]
            others[name].append(float(np.mean(less)))
        for name in TOGETHER:
            tasks = [[1e4 * _gain(found, name, task) for task in TASKS] for found in of_seed]
            by_task[name].append(np.mean(tasks, axis=0).tolist())
        for correlation, found in zip(CORRELATIONS, of_seed, strict=True):
            reached = {name: [round(f.loss, 6), round(f.pairs, 2)] for name, f in found.items()}
            details.append({"seed": seed, "correlation": correlation, **reached})
    beside = ", ".join(
        f"{name} {np.mean(less):+.1f} above joint's" for name, less in others.items()
    )
    results = []
    for name in TOGETHER:
        mean_T = np.mean(by_task[name], axis=0)
        worst = f"worst task {TASKS[int(mean_T.argmin())]} {mean_T.min():+.1f}"
        control = f"random shared picks {np.mean(gaps['random']):+.1f}"
        note = f"log-loss in 1e-4 at equal pairs; {worst}; {control}; {beside}"
        results += _as_results(name, gaps[name], note, details)
    worse = [ours - chance for ours, chance in zip(gaps["joint"], gaps["random"], strict=True)]
    results += [Result("joint_over_random", Spread.of_mean(worse), digits=1)]
    return results


def _as_results(
    name: str, gaps: Sequence[float], note: str, details: Sequence[Mapping[str, Any]]
) -> list[Result]:
    spread = Spread.of_mean(gaps)
    low = replace(spread, median=spread.low, high=spread.low)
    return [
        Result(f"{name}_quality", spread, note=note, details=details, digits=1),
        Result(f"{name}_quality_low", low, note="lower end, 95 %", digits=1),
    ]


def _gain(found: Mapping[str, Found], name: str, task: str | None = None) -> float:
    """How much less it loses than gates that decide alone would, with as many pairs."""
    one, two, ours = found["alone, k 1"], found["alone, k 2"], found[name]

    def loss(of: Found) -> float:
        return of.loss if task is None else of.losses[task]

    share = (ours.pairs - one.pairs) / (two.pairs - one.pairs)
    return loss(one) + share * (loss(two) - loss(one)) - loss(ours)


def trained(
    models: Mapping[str, Mapping[str, Any]], seed: int, correlation: float, bench: Bench
) -> dict[str, Found]:
    world = draw_world(seed, correlation, bench.rows)
    train = round(len(world.log) * TRAIN_SHARE)
    splits = split_rows(world.log.slice(0, train), world.log.slice(train))
    truth = {task: p[train:] for task, p in world.truth.items()}
    found = {}
    for name, model in models.items():
        predicted, pairs = _train(_config(model), splits, seed)
        losses = {t: log_loss(p, predicted[t]) - log_loss(p, p) for t, p in truth.items()}
        found[name] = Found(losses, pairs)
        text = f"seed {seed}, {correlation}: {name}: {found[name].loss:.5f} above the oracle"
        bench.clock.say(f"  {text}, {pairs:.1f} pairs a row")
    return found


def _config(model: Mapping[str, Any]) -> dict[str, Any]:
    experts = {} if "kind" in model else {"num_experts": EXPERTS}
    sizes = {"embedding_dim": 8, **experts, "expert": {"hidden": list(HIDDEN)}}
    return {
        "features": [
            *({"kind": "categorical", "name": name} for name in SIZES),
            *({"kind": "numeric", "name": name} for name in ("price", "age")),
        ],
        "tasks": [{"name": task, "label": task} for task in TASKS],
        "model": {**sizes, "tower": {"hidden": [16]}, **model},
        "training": {"epochs": 3, "batch_size": 512, "loggers": []},
    }


def _train(
    raw: Mapping[str, Any], splits: Splits, seed: int
) -> tuple[dict[str, np.ndarray], float]:
    """Predictions of the test rows, and the pairs that a row of them computed."""
    gates: list[dict[str, Any]] = []

    def keep(run: Path) -> None:
        gates.extend(json.loads((run / "curves.json").read_text())["gates"])

    predicted = predictions(raw, splits, seed, keep)
    model = config_from_dict(raw).model
    ratio = gates[0]["distinct_pair_ratio"] if gates else None
    if ratio is None:
        return predicted, float(model.visible_experts)
    return predicted, ratio * len(TASKS) * (model.gate.picks or 0)


KEYS = {
    f"{name}_quality{end}": Target(least)
    for name in TOGETHER
    for end, least in (("", 0.0), ("_low", -1.0))
}
QUALITY_RACES = (Race(KEYS, qualities),)


# A dense MMoE and a Shared-Bottom that take as long to train as joint picks do: who loses less

_TRIALS = 3  # of each size, in turns
_LARGE = 8  # times as many experts, of the second size
_MOST = 16  # a line that hardly rises says nothing beyond
_DENSE, _BOTTOM = "dense MMoE", "Shared-Bottom"
EQUAL_TIME_KEYS = ("dense_equal_time", "shared_bottom_equal_time")


def _dense(experts: int) -> dict[str, Any]:
    return {**MODELS[_DENSE], "num_experts": experts}


def _bottom(experts: int) -> dict[str, Any]:
    """One expert, as wide as so many."""
    return {**MODELS[_BOTTOM], "expert": {"hidden": [HIDDEN[0] * experts, HIDDEN[1]]}}


_SIZED: Mapping[str, Callable[[int], dict[str, Any]]] = {_DENSE: _dense, _BOTTOM: _bottom}


def equal_times(bench: Bench) -> list[Result]:
    sizes = _sizes(bench)
    models = {name: sized(sizes[name]) for name, sized in _SIZED.items()}
    gaps: dict[str, list[float]] = {name: [] for name in models}
    details: list[dict[str, Any]] = []
    for seed in range(bench.seeds):
        less: dict[str, list[float]] = {name: [] for name in models}
        for correlation in CORRELATIONS:
            some = {"joint": MODELS["joint"], **models}
            found = trained(some, seed, correlation, bench)
            for name in models:
                less[name].append(1e4 * (found[name].loss - found["joint"].loss))
            losses = {name: round(f.loss, 6) for name, f in found.items()}
            details.append({"seed": seed, "correlation": correlation, **losses})
        for name in models:
            gaps[name].append(float(np.mean(less[name])))
    return [
        Result(
            key,
            Spread.of_mean(gaps[name]),
            note=f"log-loss in 1e-4 above joint's; as large as {sizes[name]} experts",
            details=details,
            digits=1,
        )
        for key, name in zip(EQUAL_TIME_KEYS, models, strict=True)
    ]


def _sizes(bench: Bench) -> dict[str, int]:
    models = {
        (name, times): sized(times * PAIRS)
        for name, sized in _SIZED.items()
        for times in (1, _LARGE)
    }
    some = {"joint": MODELS["joint"], **{f"{name} × {n}": m for (name, n), m in models.items()}}
    seconds: dict[str, list[float]] = {name: [] for name in some}
    for _ in range(_TRIALS):
        for name, model in some.items():
            began = time.process_time()
            trained({name: model}, 0, CORRELATIONS[0], bench)
            seconds[name].append(time.process_time() - began)
    joint, *_ = found = {name: float(np.median(each)) for name, each in seconds.items()}
    sizes = {}
    for name in _SIZED:
        small, large = (found[f"{name} × {times}"] for times in (1, _LARGE))
        more = (found[joint] - small) / max(large - small, 1e-9)
        times = 1 + (_LARGE - 1) * more
        sizes[name] = max(1, round(PAIRS * min(times, _MOST)))
        said = f"{found[joint]:.1f} s as joint picks: {small:.1f} s with {PAIRS}, {large:.1f}"
        bench.clock.say(f"  {name}: {sizes[name]} experts take {said} with {_LARGE * PAIRS}")
    return sizes


EQUAL_TIME_RACES = (Race(dict.fromkeys(EQUAL_TIME_KEYS), equal_times),)


# A log of a big domain and four small ones, which weigh the same signals differently

DOMAIN_TASKS = ("click", "buy")
BIG, SMALL = "feed", ("live", "search", "shop", "story")
SHARE = 0.01  # of the rows, of each small domain
TEST_ROWS = 4_000  # of each small domain, beside the log
DOMAIN_SIZES: Mapping[str, int] = {"campaign": 40, "site": 40, "city": 30, "hour": 24}
NUMBERS = ("price", "age", "depth")
_SIGNALS = 6
_DOMAIN_SPREAD = 1.5  # standard deviation of a logit
_DOMAIN_RATES = {"click": -1.0, "buy": -1.6}


@dataclass(frozen=True)
class DomainWorld:
    """A log to train on, with a column `scene`; test rows of the small domains."""

    log: pa.Table
    test: pa.Table  # Others
    truth: Mapping[str, np.ndarray]  # By task, the true probabilities of the test rows


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
    ids = {name: rng.integers(size, size=count) for name, size in DOMAIN_SIZES.items()}
    numbers = {name: rng.normal(size=count) for name in NUMBERS}
    signals_KN = np.stack([_domain_signal(rng, ids, numbers, k) for k in range(_SIGNALS)])
    columns = {"scene": pa.array(scenes)} | {
        name: pa.array([f"{name}{i}" for i in own]) for name, own in ids.items()
    }
    truth = {}
    for task in DOMAIN_TASKS:
        logit_N, common_K = np.zeros(count), rng.normal(size=_SIGNALS)
        for scene in (BIG, *SMALL):
            mine = scenes == scene
            own_K = rng.normal(size=_SIGNALS)
            weights_K = correlation**0.5 * common_K + (1 - correlation) ** 0.5 * own_K
            mixed = weights_K / np.linalg.norm(weights_K) @ signals_KN[:, mine]
            logit_N[mine] = _DOMAIN_RATES[task] + 0.3 * rng.normal() + _DOMAIN_SPREAD * mixed
        truth[task] = 1 / (1 + np.exp(-logit_N))
        columns[task] = pa.array((rng.random(count) < truth[task]).astype(np.int8))
    table = pa.table({**columns, **numbers})
    return DomainWorld(table[:rows], table[rows:], {t: p[rows:] for t, p in truth.items()})


def _domain_signal(
    rng: np.random.Generator,
    ids: Mapping[str, np.ndarray],
    numbers: Mapping[str, np.ndarray],
    k: int,
) -> np.ndarray:
    names = list(ids)
    if k < len(names):
        one, two = names[k], names[(k + 1) % len(names)]
        effect_N = rng.normal(size=DOMAIN_SIZES[one])[ids[one]]
        of_one, of_two = (
            rng.normal(size=(DOMAIN_SIZES[name], 2))[ids[name]] for name in (one, two)
        )
        effect_N = effect_N + (of_one * of_two).sum(1)
    else:
        effect_N = sum(
            np.sin(rng.uniform(1, 3) * x_N + rng.uniform(0, 6)) for x_N in numbers.values()
        )
    assert isinstance(effect_N, np.ndarray)
    return (effect_N - effect_N.mean()) / effect_N.std()


# What small domains gain by gates of their own over shared experts: AUC beside two alternatives

DOMAIN_CORRELATIONS = (0.2, 0.5, 0.9)  # of logits in two domains
OTHERS = ("one for all", "one for each")
_FEW = 32  # rows of a batch where there are few hundreds: else there would be next to no steps


def small_domains(bench: Bench) -> list[Result]:
    gains: dict[str, list[float]] = {name: [] for name in OTHERS}
    own_towers: list[float] = []
    details: list[dict[str, Any]] = []
    for seed in range(bench.seeds):
        of_seed = [_one(seed, correlation, bench) for correlation in DOMAIN_CORRELATIONS]
        for name in OTHERS:
            more = [reached["domains"] - reached[name] for reached in of_seed]
            gains[name].append(float(np.mean(more)))
        more = [reached["own towers"] - reached["domains"] for reached in of_seed]
        own_towers.append(float(np.mean(more)))
        for correlation, reached in zip(DOMAIN_CORRELATIONS, of_seed, strict=True):
            rounded = {name: round(auc, 5) for name, auc in reached.items()}
            details.append({"seed": seed, "correlation": correlation, **rounded})
    means = {name: float(np.mean(of)) for name, of in gains.items()}
    worst = min(means, key=lambda name: means[name])
    note = "; ".join(f"{mean:+.4f} over {name}" for name, mean in means.items())
    return [
        Result(
            "small_domain_gain",
            Spread.of_mean(gains[worst]),
            note=f"AUC, mean of domains and tasks, the smaller of {note}; "
            f"own towers {np.mean(own_towers):+.4f} beside shared ones",
            details=details,
            digits=4,
        )
    ]


def _one(seed: int, correlation: float, bench: Bench) -> dict[str, float]:
    world = draw_domains(seed, correlation, bench.rows)
    own: dict[str, Any] = {"column": "scene"}
    found = {
        "domains": _auc(world, _predicted(world, seed, own)),
        "own towers": _auc(world, _predicted(world, seed, own | {"towers": "own"})),
        "one for all": _auc(world, _predicted(world, seed, None)),
        "one for each": _auc(world, _one_for_each(world, seed)),
        "oracle": _auc(world, world.truth),
    }
    said = ", ".join(f"{name} {auc:.4f}" for name, auc in found.items())
    bench.clock.say(f"  seed {seed}, {correlation}: {said}")
    return found


def _auc(world: DomainWorld, predicted: Mapping[str, np.ndarray]) -> float:
    scenes = world.test["scene"].to_numpy(zero_copy_only=False)
    found = [
        roc_auc_score(
            world.test[task].to_numpy()[scenes == scene], predicted[task][scenes == scene]
        )
        for task in DOMAIN_TASKS
        for scene in SMALL
    ]
    return float(np.mean(found))


def _predicted(
    world: DomainWorld, seed: int, domains: Mapping[str, Any] | None
) -> dict[str, np.ndarray]:
    splits = split_rows(world.log, world.test)
    return predictions(_domain_config(domains), splits, seed)


def _one_for_each(world: DomainWorld, seed: int) -> dict[str, np.ndarray]:
    scenes = world.test["scene"].to_numpy(zero_copy_only=False)
    found = {task: np.zeros(len(scenes)) for task in DOMAIN_TASKS}
    for scene in SMALL:
        log, test = (table.filter(pc.field("scene") == scene) for table in (world.log, world.test))
        for task, p in predictions(_domain_config(None, _FEW), split_rows(log, test), seed).items():
            found[task][scenes == scene] = p
    return found


def _domain_config(domains: Mapping[str, Any] | None, batch_size: int = 256) -> dict[str, Any]:
    return {
        "features": [
            *({"kind": "categorical", "name": name} for name in ("scene", *DOMAIN_SIZES)),
            *({"kind": "numeric", "name": name, "buckets": 16} for name in NUMBERS),
        ],
        "tasks": [{"name": task, "label": task} for task in DOMAIN_TASKS],
        "model": {
            "embedding_dim": 8, "num_experts": 8, "expert": {"hidden": [32, 16]},
            "tower": {"hidden": [16]}, "domains": domains,
        },
        "training": {"epochs": 8, "batch_size": batch_size, "loggers": []},
    }  # fmt: skip


DOMAIN_QUALITY_RACES = (Race({"small_domain_gain": Target(0.0)}, small_domains),)
RACES = (*QUALITY_RACES, *EQUAL_TIME_RACES, *DOMAIN_QUALITY_RACES)
