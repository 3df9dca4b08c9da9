"""What sharing gains in time: picks, requests, tasks, domains."""

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from benchmarks.racing.harness import Clock, Race, Result, Spread, Target, Times, speedup
from benchmarks.racing.layers import Values, correlated_logits, draw, ours, trained_logits
from benchmarks.racing.layers import Workload as LayerWorkload
from benchmarks.train.ours import LogSteps
from benchmarks.train.workloads import (
    BATCH,
    EXPERTS,
    HIDDEN,
    TOWER,
    WORKLOADS,
    Log,
    Workload,
    World,
    mlp,
    raw_config,
    zipf_ids,
)
from benchmarks.train.workloads import draw_table as draw_rows
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets import encode_labels
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files.nested import nested
from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedData
from mmoe.datasets.rows.splits import Splits
from mmoe.mixture import Selection
from mmoe.mixture.gates.learned import LearnedGate
from mmoe.mixture.inputs import Inputs
from mmoe.models.build import build_ranker
from mmoe.models.network import NetworkOutput
from mmoe.models.ranker import Ranker
from mmoe.parallel import ensure_process_group, training_group
from mmoe.predictor import Predictor
from mmoe.run.memory import keep_freed_memory
from mmoe.train.fit import training_state
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.prepare import PreparedData, prepare
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import Step, StepProgram

# What every race gets


@dataclass(frozen=True)
class Bench:
    """The clock, and how much to train."""

    clock: Clock  # For times, and told of progress
    seeds: int = 10  # Of trainings that are compared
    rows: int = 40_000  # Of a log, test rows among them


# `big` of `benchmarks.train` as a log of requests: half of the columns are the request's

WORKLOAD = WORKLOADS["big"]
CANDIDATES = 50
REQUEST_EXPERTS = EXPERTS // 2


@dataclass(frozen=True)
class RequestLog:
    """Rows, and what is trained of them."""

    table: pa.Table  # A row for each candidate
    data: EncodedData  # Encoded, with requests
    flat: EncodedData  # The same, every row by itself
    encoder: FeatureEncoder  # Fitted on it
    config: RunConfig  # Of a run

    def batches(self, data: EncodedData) -> list[Batch]:
        starts = range(0, len(data) - BATCH + 1, BATCH)
        return [data.batch(slice(start, start + BATCH)) for start in starts]


def request_columns() -> set[str]:
    return {column.column for column in WORKLOAD.ids[::2]} | set(WORKLOAD.dense_columns[::2])


def draw_log(rows: int, *, exact: bool) -> RequestLog:
    table = draw_table(rows)
    config = config_from_dict(_raw(exact=exact))
    encoder = FeatureEncoder.fit(config, table, "log")
    features = encoder.encode(table, "log")
    labels = encode_labels(config, table, "log")
    data = EncodedData(features=features, labels=labels)
    return RequestLog(
        table, data, EncodedData(features=features.flat(), labels=labels), encoder, config
    )


def draw_table(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    request_N = np.arange(rows) // CANDIDATES
    shared, count = request_columns(), int(request_N[-1]) + 1
    columns: dict[str, np.ndarray] = {"request": request_N}
    for column in WORKLOAD.ids:
        own = column.column in shared
        ids = zipf_ids(rng, column.rows, count if own else rows)
        columns[column.column] = ids[request_N] if own else ids
    for name in WORKLOAD.dense_columns:
        numbers = rng.standard_normal(count if name in shared else rows).astype(np.float32)
        columns[name] = numbers[request_N] if name in shared else numbers
    for task in WORKLOAD.tasks:
        columns[task] = (rng.random(rows) < 0.3).astype(np.int8)
    return pa.table(columns)


def _raw(*, exact: bool) -> Mapping[str, Any]:
    raw = raw_config(Log(WORKLOAD, Path("unused"), 0), precision="fp32")
    raw["data"] = {"requests": {"column": "request", "exact": exact}}
    for feature in raw["features"]:
        if feature["name"] in request_columns():
            feature["level"] = "request"
    raw["model"]["num_experts"] = {"request": REQUEST_EXPERTS, "row": EXPERTS - REQUEST_EXPERTS}
    return raw


# Rows of requests: a training step and scoring over every row by itself, of one architecture

_BATCHES = 6  # trained on in turn, so that no step finds its rows of tables in the caches
_SCORED = 8  # batches of a scoring
_STORED = 200_000  # rows of the two files
REQUEST_WAYS = {"": False, "_exact": True}  # ending of keys → data.requests.exact
TRAIN_KEYS = tuple(f"request_train_gain{ending}" for ending in REQUEST_WAYS)
SCORE_KEYS = tuple(f"request_score_gain{ending}" for ending in REQUEST_WAYS)


def train_gains(bench: Bench) -> list[Result]:
    results = []
    for ending, exact in REQUEST_WAYS.items():
        log = draw_log(_BATCHES * BATCH, exact=exact)
        calls = {"alone": _request_steps(log, log.flat), "shared": _request_steps(log, log.data)}
        times = bench.clock.race(f"steps{ending}", calls, share=0.5)
        rate = BATCH / times.median("shared")
        note = f"{CANDIDATES} candidates a request, {rate:,.0f} rows/s"
        results.append(speedup(f"request_train_gain{ending}", times, "alone", "shared", note))
    return results


def score_gains(bench: Bench) -> list[Result]:
    results, equal = [], True
    for ending, exact in REQUEST_WAYS.items():
        log = draw_log(_SCORED * BATCH, exact=exact)
        predictor = Predictor(_ranker(log), log.config)
        rows = {"alone": BatchSource.of(log.flat), "shared": BatchSource.of(log.data)}
        found = {way: predictor.predict(source) for way, source in rows.items()}
        times = bench.clock.race(
            f"scores{ending}",
            {way: _scoring(predictor, source) for way, source in rows.items()},
            share=0.5,
        )
        rate = _SCORED * BATCH / times.median("shared")
        note = f"{CANDIDATES} candidates a request, {rate:,.0f} rows/s"
        results.append(speedup(f"request_score_gain{ending}", times, "alone", "shared", note))
        equal &= _equal(found["shared"], found["alone"], exact=exact)
    same = Result("request_equal", Spread.single(float(equal)), digits=0)
    return [*results, same, *stored_bytes()]


def stored_bytes() -> list[Result]:
    """The log as Parquet, nested over flat; flat candidates side by side, and as logs mix them."""
    table = draw_table(_STORED)
    mixed = table.take(pa.array(np.random.default_rng(0).permutation(len(table))))
    own = _bytes(nested(table, "request", sorted(request_columns()), "items"))
    results = []
    for ending, flat in (("", _bytes(table)), ("_mixed", _bytes(mixed))):
        note = f"{own / 2**20:.1f} MiB, flat {flat / 2**20:.1f}"
        spread = Spread.single(own / flat)
        results.append(Result(f"request_bytes{ending}", spread, note=note))
    return results


def _bytes(table: pa.Table) -> int:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.tell()


def _ranker(log: RequestLog) -> Ranker:
    ensure_process_group()
    torch.manual_seed(0)
    return build_ranker(log.config, log.encoder)


def _request_steps(log: RequestLog, data: EncodedData) -> Callable[[], None]:
    ranker = _ranker(log)
    optimizer = build_optimizer(ranker.network, log.config.training.optimizer)
    average = build_average(ranker.network, log.config.training.ema_decay)
    state = TrainingState(ranker, optimizer, average, Position())
    state.train_mode()
    batches = cycle(log.batches(data))

    def step() -> None:
        StepProgram(state, log.config, 1_000).train(Step.of([next(batches)]))

    return step


def _scoring(predictor: Predictor, source: BatchSource) -> Callable[[], None]:
    def score() -> None:
        predictor.predict(source)

    return score


def _equal(shared: np.ndarray, alone: np.ndarray, *, exact: bool) -> bool:
    return np.array_equal(shared, alone) if exact else bool(np.abs(shared - alone).max() <= 1e-6)


REQUEST_RACES = (
    Race({TRAIN_KEYS[0]: Target(1.6), TRAIN_KEYS[1]: Target(1.35)}, train_gains),
    Race(
        {SCORE_KEYS[0]: Target(1.7), SCORE_KEYS[1]: Target(1.35), "request_equal": Target(1.0)},
        score_gains,
    ),
)


# Whole training steps of `big` with any number of tasks, on rows that lie in memory

BATCHES = 8  # of an epoch
STEPS = 1_000_000  # more than any race takes
Network = Callable[[int, int], nn.Module]


def many_tasks(tasks: int) -> Workload:
    """`big` with as many tasks; all but the first follow a click."""
    names = tuple(f"task{number}" for number in range(tasks))
    return replace(WORKLOADS["big"], name=f"big_{tasks}_tasks", tasks=names)


class Steps:
    """Rows of a workload, and what trains on them."""

    def __init__(self, workload: Workload) -> None:
        rows = BATCHES * BATCH
        log = Log(workload, Path("unused"), rows)
        self.config: RunConfig = config_from_dict(raw_config(log, precision="fp32"))
        self.data: PreparedData = prepare(self.config, splits=_task_splits(workload, rows))
        self.input_dim = workload.input_dim

    def of(self, network: Network | None = None) -> Callable[[], None]:
        """Makes a contestant."""
        return self.step(self.state(network))

    def state(self, network: Network | None = None) -> TrainingState:
        keep_freed_memory()  # as every training does
        ensure_process_group()
        state = training_state(self.config, self.data)
        if network is not None:
            torch.manual_seed(self.config.seed)
            other: Any = network(self.input_dim, len(self.config.tasks))
            state.ranker.network = other
            state.optimizer = build_optimizer(state.ranker.network, self.config.training.optimizer)
        state.train_mode()
        return state

    def step(self, state: TrainingState) -> Callable[[], None]:
        batches = self._batches()

        def step() -> None:
            StepProgram(state, self.config, STEPS).train(Step.of([next(batches)]))

        return step

    def _batches(self) -> Generator[Batch]:
        for epoch in count():
            yield from self.data.train.epoch_batches(self.config.seed, epoch, BATCH)


def _task_splits(workload: Workload, rows: int) -> Splits:
    world = World(workload, 0)
    table = draw_rows(world, rows, ([0, 1], [0, 2]))
    return Splits(train=table, validation=table.slice(0, 500), test=table.slice(0, 500))


# MMoE of many tasks as two other libraries write it, in plain PyTorch, beside our embeddings


class Form(nn.Module, ABC):
    """A network in the place of ours."""

    # What the ranker asks a network of ours for beside its levels and towers
    inputs = sequences = interaction = bias_tower = None

    def __init__(self, input_dim: int, tasks: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(input_dim, HIDDEN) for _ in range(EXPERTS))
        self.gates = nn.ModuleList(nn.Linear(input_dim, EXPERTS) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(*mlp(HIDDEN[-1], (TOWER,)), nn.Linear(TOWER, 1)) for _ in range(tasks)
        )

    def forward(self, x_BD: Tensor, *_: object, **__: object) -> NetworkOutput:
        return NetworkOutput(self.logits(x_BD), {}, [])

    @abstractmethod
    def logits(self, x_BD: Tensor) -> Tensor:
        """Computes them the other library's way."""


class RechubForm(Form):
    """torch-rechub's `MMOE.forward`, less the batch norms of its layers and its last sigmoid."""

    def logits(self, x_BD: Tensor) -> Tensor:
        y_BEO = torch.cat([expert(x_BD).unsqueeze(1) for expert in self.experts], dim=1)
        gates = [gate(x_BD).softmax(dim=1).unsqueeze(-1) for gate in self.gates]
        logits = []
        for weights_BE1, tower in zip(gates, self.towers, strict=True):
            mix_BO = torch.sum(torch.mul(weights_BE1, y_BEO), dim=1)
            logits.append(tower(mix_BO))
        return torch.cat(logits, dim=1)


class TzrecForm(Form):
    """TorchEasyRec's `MMoE.forward` and its task towers."""

    def logits(self, x_BD: Tensor) -> Tensor:
        y_BEO = torch.stack([expert(x_BD) for expert in self.experts], dim=1)
        mixes = []
        for gate in self.gates:
            weights_B1E = torch.softmax(gate(x_BD), dim=1).unsqueeze(1)
            mixes.append(torch.matmul(weights_B1E, y_BEO).squeeze(1))
        logits = [tower(mix_BO) for tower, mix_BO in zip(self.towers, mixes, strict=True)]
        return torch.cat(logits, dim=1)


# What more tasks cost: a whole training step of 64 over one of 2, and other forms over ours

FEW, MANY = 2, 64
FORMS = {"rechub": RechubForm, "tzrec": TzrecForm}
OVER_FEW = f"tasks_{MANY}_over_{FEW}"
FORM_KEYS = tuple(f"vs_{name}_form_T{MANY}" for name in FORMS)


def over_few_tasks(bench: Bench) -> list[Result]:
    steps = {f"{tasks} tasks": Steps(many_tasks(tasks)).of() for tasks in (FEW, MANY)}
    times = bench.clock.race(OVER_FEW, steps)
    many, few = f"{MANY} tasks", f"{FEW} tasks"
    return [speedup(OVER_FEW, times, many, few, "ours, ms: of two tasks")]


def over_other_forms(bench: Bench) -> list[Result]:
    """Networks as others write them over ours, all else alike."""
    steps = Steps(many_tasks(MANY))
    contestants = {"mmoe": steps.of(), **{name: steps.of(form) for name, form in FORMS.items()}}
    times = bench.clock.race(" and ".join(FORM_KEYS), contestants)
    return [speedup(key, times, name) for key, name in zip(FORM_KEYS, FORMS, strict=True)]


TASK_RACES = (
    Race({OVER_FEW: Target(2.1, at_most=True)}, over_few_tasks),
    Race({FORM_KEYS[0]: Target(2.0), FORM_KEYS[1]: Target(3.0)}, over_other_forms),
)


# A whole training step of `big` with four tasks: 16 domains over none

TASKS = ("click", "finish", "like", "buy")
DOMAINS = 16
DOMAIN_STEPS = 3  # of a measurement
# Name → what its `model` section has beside sizes
DOMAIN_WAYS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "shared": {"domains": {"column": "scene"}},
    "own": {"domains": {"column": "scene", "towers": "own"}},
}
_BIG = WORKLOADS["big"]


def domain_steps(bench: Bench) -> list[Result]:
    with training_group():
        log = draw_domain_log(DOMAIN_STEPS * BATCH)
        steps = {way: LogSteps(step_config(way), log) for way in DOMAIN_WAYS}
        times = bench.clock.race("steps", steps)
    results = []
    for key, way in (("domains_16_over_1", "shared"), ("domains_16_over_1_own_towers", "own")):
        of_way, of_none = times.median(way), times.median("none")
        results.append(
            Result(
                key,
                times.ratio(way, "none"),
                of_way * 1e3 / DOMAIN_STEPS,
                of_none * 1e3 / DOMAIN_STEPS,
                "16 domains over none, a step of 4,096 rows, 4 tasks, fp32",
            )
        )
    return results


def step_config(way: str) -> RunConfig:
    log = Log(replace(_BIG, tasks=TASKS), Path("unused"), DOMAIN_STEPS * BATCH)
    raw = raw_config(log, precision="fp32")
    return config_from_dict({**raw, "model": {**raw["model"], **DOMAIN_WAYS[way]}})


def draw_domain_log(rows: int) -> pa.Table:
    """Rows of `big` with a scene each; ids of which a few are met often."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: rng.normal(size=rows) for name in _BIG.dense_columns}
    for ids in _BIG.single:
        columns[ids.column] = np.exp(rng.random(rows) * np.log(ids.rows)).astype(np.int64)
    columns["scene"] = rng.integers(DOMAINS, size=rows)
    return pa.table(columns | {task: rng.integers(0, 2, rows) for task in TASKS})


DOMAIN_RACES = (Race({"domains_16_over_1": Target(1.2, at_most=True)}, domain_steps),)


# A training step of the sparse layer: gates that decide together over gates that decide alone. The
# four gates of each contestant have the same logits and mix four experts each; how many distinct
# pairs of row and expert that makes is the difference

LAYER = LayerWorkload(B=4096, D=256, hidden=(512, 256), E=64, G=4, k=4)
WAYS: Mapping[str, Selection | None] = {
    "alone": None,
    "joint": Selection(shared_k=3, private_k=1),
    "budget": Selection(private_k=4, budget=4),
}
STEP_KEYS = ("joint_step_gain", "budget_step_gain")


class GivenLogits(LearnedGate):
    """Gates whose logits are parameters, and which decide alone or together."""

    def __init__(self, logits_BGE: Tensor, k: int, selection: Selection | None) -> None:
        _, G, E = logits_BGE.shape
        super().__init__(None, G, E, {}, k=k, selection=selection)
        self.logits_BGE = nn.Parameter(logits_BGE.clone())

    def scores(self, inputs: Sequence[Tensor], rows: Inputs | None) -> Tensor:
        return self.logits_BGE


def step_gains(bench: Bench) -> list[Result]:
    clock = bench.clock
    work = replace(LAYER, device=clock.device)
    values = draw(work)
    results = _gains(clock, work, values, [correlated_logits(work, shared=0.0)], "")
    trained = trained_logits(work.E, work, clock)
    return results + _gains(clock, work, values, trained, "_trained")


def _gains(
    clock: Clock, work: LayerWorkload, values: Values, batches: Sequence[Tensor], ending: str
) -> list[Result]:
    times: Times | None = None
    pairs = dict.fromkeys(WAYS, 0)
    for logits_BGE in batches:
        steps = {way: _step(work, values, logits_BGE, way, pairs) for way in WAYS}
        found = clock.race(f"steps{ending}", steps, share=1 / len(batches))
        times = found if times is None else times.then(found)
    assert times is not None
    rows = work.B * len(batches)
    return [
        speedup(
            f"{way}_step_gain{ending}",
            times,
            "alone",
            way,
            f"{pairs[way] / rows:.2f} pairs a row, not {pairs['alone'] / rows:.2f}: "
            f"bound {pairs['alone'] / pairs[way]:.2f}",
        )
        for way in ("joint", "budget")
    ]


def _step(
    work: LayerWorkload, values: Values, logits_BGE: Tensor, way: str, pairs: dict[str, int]
) -> Callable[[], None]:
    """One way's training step; counts the pairs that it computes."""
    assert work.k is not None
    gate = GivenLogits(logits_BGE, work.k, WAYS[way]).to(work.device)
    visible_GE = torch.ones(work.G, work.E, dtype=torch.bool, device=work.device)
    with torch.no_grad():
        output = gate([values.x_BD] * work.G, visible_GE)
    pairs[way] += int(output.picked(visible_GE).any(1).sum())
    return ours(work, values, gate=gate).step


STEP_RACES = (Race({STEP_KEYS[0]: Target(1.9), STEP_KEYS[1]: Target(2.8)}, step_gains),)
RACES = (*STEP_RACES, *REQUEST_RACES, *TASK_RACES, *DOMAIN_RACES)
