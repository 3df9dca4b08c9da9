"""Training steps of what `benchmarks.train` calls `big`, beside the same in plain torch; and whole.

Mixture, towers, loss, gradients and Adam in bf16 under autocast; the rows are given, without the
tables of embeddings, which the line says. `STEP` is dense-8192, top2-65536 and the like.

whole-8192 and whole-65536 are `big` trained by mmoe itself, tables and all, from Parquet to updated
weights: two epochs, of which the last is timed; a few steps of the first are profiled. Then the
same without `training.cuda_graphs`. These need what mmoe needs, pydantic among it.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_check.contest import timed
from benchmarks.gpu_check.kernels import product_rate

if TYPE_CHECKING:
    from mmoe.config import DeviceKind
import json
import tempfile

from benchmarks.gpu_check.record import (
    FAILED,
    LEFT_OUT,
    MEASURED,
    Record,
    opened_record,
    process_options,
)
from benchmarks.train.workloads import (
    BIG_FLOPS_PER_ROW,
    EXPERTS,
    HIDDEN,
    LEARNING_RATE,
    TOWER,
    WORKLOADS,
    raw_config,
    write_log,
)
from mmoe.mixture import MLPExperts, MultiGateMixture, SoftmaxGate, TopKGate

BATCHES = (8_192, 65_536)
# Gates, and picks of each: as `big` has it, and what sparse gates would be
GATES = {"dense": (2, None), "top2": (4, 2)}
STEPS = tuple(f"{kind}-{batch}" for batch in BATCHES for kind in GATES)
WHOLE = tuple(f"whole-{batch}" for batch in BATCHES)
WIDTH = WORKLOADS["big"].input_dim
SETS, ROUNDS = 3, 20
TABLES = "none"  # rows are given
# Of the fastest of plain torch, by gates
HOPED_FOR = {"dense": 1.2, "top2": 2.0}
PROFILED = 3  # steps


class Ranker(nn.Module):
    def __init__(self, mixture: nn.Module, tasks: int) -> None:
        super().__init__()
        self.mixture = mixture
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(HIDDEN[-1], TOWER), nn.ReLU(), nn.Linear(TOWER, 1))
            for _ in range(tasks)
        )

    def forward(self, x_BD: Tensor) -> Tensor:
        mixed = self.mixture(x_BD)
        mixed_BGO = mixed if isinstance(mixed, Tensor) else mixed.out_BGO
        towers = enumerate(self.towers)
        return torch.cat([tower(mixed_BGO[:, task]) for task, tower in towers], dim=1)


def main(arguments: Sequence[str] | None = None) -> None:
    options = process_options("train", small="64 rows, nothing compiled; whole: 4,096 in all")
    options.add_argument("step", choices=(*STEPS, *WHOLE))
    settings = options.parse_args(arguments)
    record = opened_record(settings)
    if settings.step in WHOLE:
        _whole(settings.step, settings.device, settings.small, record)
    elif not run(settings.step, settings.device, settings.small, record):
        sys.exit("a step failed; the record says which")


def run(step: str, device: str, small: bool, record: Record) -> bool:
    kind, batch = step.split("-")
    rows, done, well = 64 if small else int(batch), record.done(), True
    rate = measured_rate(device, small)
    for who, make in _contestants(kind, small).items():
        key = f"train/{step}/{who}"
        if key in done:
            continue
        try:
            graphed = who.endswith("graphed")
            values = measure(make, kind, rows, device, rate, graphed=graphed)
        # A compiler throws what it likes, and one rival must not cost the others
        except Exception as error:
            status = FAILED if who == "mmoe" else LEFT_OUT
            record.add(key, status, reason=f"{type(error).__name__}: {str(error)[:300]}")
            well = well and status != FAILED
            continue
        record.add(key, MEASURED, rows=rows, tables=TABLES, **values)
        print(f"{key}: {values}", flush=True)
    _compare(step, kind, record)
    return well


def _compare(step: str, kind: str, record: Record) -> None:
    start, lines = f"train/{step}/", record.lines()
    rates = {
        key.removeprefix(start): line["rows_per_second"]
        for key, line in lines.items()
        if key.startswith(start) and "rows_per_second" in line
    }
    ours = max((rate for who, rate in rates.items() if who.startswith("mmoe")), default=0)
    others = {who: rate for who, rate in rates.items() if not who.startswith("mmoe")}
    if ours and others:
        times = {who: round(ours / rate, 3) for who, rate in others.items()}
        key = f"train/{step} against plain torch"
        record.add(key, MEASURED, times_as_fast=times, hoped_for=HOPED_FOR[kind])


def _contestants(kind: str, small: bool) -> dict[str, Callable[[], Ranker]]:
    gates, k = GATES[kind]

    def ours() -> Ranker:
        experts = MLPExperts(EXPERTS, WIDTH, list(HIDDEN))
        gate = (
            SoftmaxGate(WIDTH, gates, EXPERTS)
            if k is None
            else TopKGate(WIDTH, gates, EXPERTS, k=k)
        )
        return Ranker(MultiGateMixture(WIDTH, gates, experts, gate=gate), gates)

    sizes = WIDTH, HIDDEN, EXPERTS, gates

    def batched() -> Ranker:
        return Ranker(DenseLayer(*sizes), gates)

    def grouped() -> Ranker:
        layer = DenseGroupedLayer(*sizes) if k is None else GroupedLayer(*sizes, k)
        return Ranker(layer, gates)

    def compiled(make: Callable[[], Ranker]) -> Callable[[], Ranker]:
        # What it returns has the methods of what it was given
        return lambda: cast(Ranker, torch.compile(make()))

    plain = {"F.grouped_mm": grouped, **({"baddbmm": batched} if k is None else {})}
    found = {"mmoe": ours, **plain}
    if not small:
        found |= {f"{who} graphed": make for who, make in [*found.items()]}
        found |= {f"{who} compiled": compiled(make) for who, make in [*plain.items()]}
        found["mmoe compiled"] = compiled(ours)
    return found


def measure(
    make: Callable[[], Ranker], kind: str, rows: int, device: str, rate: float, *, graphed: bool
) -> dict[str, Any]:
    """Rows/s, the share of the product rate, and the share that waits for the host.

    Graphed, the model's forward and backward passes are a captured graph each; loss and Adam are
    launched as always.
    """
    gates = GATES[kind][0]
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=LEARNING_RATE, fused=True, capturable=device == "cuda"
    )
    x = [torch.randn(rows, WIDTH, device=device).requires_grad_() for _ in range(SETS)]
    labels = [(torch.rand(rows, gates, device=device) < 0.3).float() for _ in range(SETS)]
    # A graph keeps addresses, and what autocast caches is gone after a step
    autocast = partial(torch.autocast, device, torch.bfloat16, cache_enabled=not graphed)
    if graphed:
        with autocast():
            sample = (torch.zeros_like(x[0]).requires_grad_(),)
            model = cast(Ranker, torch.cuda.make_graphed_callables(model, sample))

    def step(n: int) -> None:
        with autocast():
            logits_BT = model(x[n])
        loss = F.binary_cross_entropy_with_logits(logits_BT.float(), labels[n])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        x[n].grad = None

    seconds = _wall(step, device)
    # A graph that launches the model's graphs is no way to tell their time
    on_device = None if graphed else timed(step, device, SETS, rounds=3)
    captured = on_device is not None and on_device.captured
    share = flops(kind) * rows / seconds / rate
    busy = on_device.seconds if on_device and captured else _kernels(step, device)
    return {
        "rows_per_second": round(rows / seconds),
        "milliseconds": round(seconds * 1e3, 4),
        "milliseconds_of_the_device": None if busy is None else round(busy * 1e3, 4),
        "share_of_product_rate": round(share, 4),
        # What the same work costs less as one graph, which no host has to launch; where none can
        # be made, what a profiler sees of kernels
        "share_waiting_for_host": None if busy is None else round(max(0.0, 1 - busy / seconds), 4),
        "captured": captured,
    }


def _kernels(step: Callable[[int], None], device: str) -> float | None:
    """Seconds in which the kernels of a step run; None where nothing tells."""
    if device != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for number in range(PROFILED):
            step(number % SETS)
        _wait(device)
    total = sum(event.self_device_time_total for event in profile.key_averages())
    return total / 1e6 / PROFILED or None


def flops(kind: str) -> float:
    """Of a row, forward and backward: experts, gates, towers; of sparse gates the picked alone."""
    gates, k = GATES[kind]
    # Distinct experts of a row on average, where gates pick independently
    experts = EXPERTS if k is None else EXPERTS * (1 - (1 - k / EXPERTS) ** gates)
    expert = WIDTH * HIDDEN[0] + HIDDEN[0] * HIDDEN[1]
    return 6.0 * (experts * expert + gates * (WIDTH * EXPERTS + HIDDEN[1] * TOWER + TOWER))


def _wall(step: Callable[[int], None], device: str) -> float:
    rounds = ROUNDS if device == "cuda" else 2
    for number in range(3 if device == "cuda" else 1):
        step(number % SETS)
    found = []
    for _ in range(3):
        _wait(device)
        started = time.perf_counter()
        for number in range(rounds):
            step(number % SETS)
        _wait(device)
        found.append((time.perf_counter() - started) / rounds)
    return statistics.median(found)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measured_rate(device: str, small: bool) -> float:
    contest = product_rate(torch.bfloat16, 64 if small else 8192, device)
    return contest.flops / timed(contest.calls["mm"], device).low


# Whole

LEAST_ROWS, LEAST_STEPS = 400_000, 16
SMALL_ROWS, SMALL_BATCH = 4_096, 256
# In a trace: what a GPU itself does
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def _whole(step: str, device: "DeviceKind", small: bool, record: Record) -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-check-whole-") as folder:
        batch = SMALL_BATCH if small else int(step.removeprefix("whole-"))
        values = measure_whole(batch, device, small, Path(folder))
    record.add(f"train/{step}/mmoe", MEASURED, **values)
    print(values)


def measure_whole(batch: int, device: "DeviceKind", small: bool, folder: Path) -> dict[str, Any]:
    # Only here: steps are timed where mmoe's packages are missing, too
    from benchmarks.train.ours import with_overrides
    from mmoe.embeddings import torchrec_problem
    from mmoe.run.atomic_files import read_json
    from mmoe.train import train_run

    rows = SMALL_ROWS if small else max(LEAST_ROWS, LEAST_STEPS * batch)
    log = write_log(WORKLOADS["big"], rows, folder)
    raw = raw_config(log, precision="bf16", epochs=2)
    rates = {}
    for graphs in (False, True):  # what is said below is of the second
        keys = f"training.batch_size={batch}", f"training.cuda_graphs={str(graphs).lower()}"
        out = folder / f"run-{graphs}"
        run = train_run(with_overrides(raw, keys), out, device=device, profile=True)
        rates[graphs] = read_json(run.directory.history_file)["epochs"][-1]["rows_per_second"]
    per_second = rates[True]
    busy = kernel_seconds(run.directory.path / "profile", batch)
    share = BIG_FLOPS_PER_ROW * per_second / measured_rate(device, small)
    return {
        "rows": batch,
        "rows_per_second": round(per_second),
        "rows_per_second_without_cuda_graphs": round(rates[False]),
        "share_of_product_rate": round(share, 4),
        "share_waiting_for_host": None if busy is None else round(1 - busy * per_second, 4),
        "tables": "plain" if torchrec_problem(torch.device(device)) else "torchrec, FBGEMM",
        "auc": run.metrics["tasks"][log.workload.tasks[0]]["auc"],
    }


def kernel_seconds(profile: Path, batch: int) -> float | None:
    """Of a row of the profiled steps, on the GPU alone; None where the trace knows of no GPU."""
    steps = json.loads((profile / "table.json").read_text(encoding="utf-8"))["steps"]
    events = json.loads((profile / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    microseconds = sum(event["dur"] for event in events if event.get("cat") in ON_DEVICE)
    return microseconds / 1e6 / steps / batch or None


# The mixture as one writes it in plain torch today: batched products, `F.grouped_mm`


class _Experts(nn.Module):
    def __init__(self, width: int, hidden: Sequence[int], experts: int, gates: int) -> None:
        super().__init__()
        shapes = list(zip((width, *hidden), hidden, strict=False))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(experts, a, b) * (2 / a) ** 0.5) for a, b in shapes
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(experts, b)) for _, b in shapes)
        self.gate = nn.Linear(width, gates * experts, bias=False)
        self.experts, self.gates = experts, gates

    def logits(self, x_BD: Tensor) -> Tensor:
        with torch.autocast(x_BD.device.type, enabled=False):
            return self.gate(x_BD.float()).view(len(x_BD), self.gates, self.experts)


class DenseLayer(_Experts):
    """Every expert on all rows, by batched products; softmax gates."""

    def forward(self, x_BD: Tensor) -> Tensor:
        y_EBH = x_BD.to(torch.bfloat16).expand(self.experts, -1, -1)
        for weight_EDH, bias_EH in zip(self.weights, self.biases, strict=True):
            y_EBH = torch.baddbmm(bias_EH.unsqueeze(1), y_EBH, weight_EDH).relu()
        weights_BGE = self.logits(x_BD).softmax(-1).to(y_EBH.dtype)
        return torch.bmm(weights_BGE, y_EBH.transpose(0, 1))


class DenseGroupedLayer(_Experts):
    """Every expert on all rows, by `F.grouped_mm` of a copy of the rows for each; softmax gates."""

    def forward(self, x_BD: Tensor) -> Tensor:
        y_EBH = _padded(x_BD.to(torch.bfloat16)).expand(self.experts, -1, -1).contiguous()
        for weight_EDH, bias_EH in zip(self.weights, self.biases, strict=True):
            weight_EDH = _padded(weight_EDH.to(torch.bfloat16), dim=1)
            y_EBH = F.grouped_mm(y_EBH, weight_EDH)
            y_EBH = (y_EBH + bias_EH.to(y_EBH.dtype).unsqueeze(1)).relu()
        weights_BGE = self.logits(x_BD).softmax(-1).to(y_EBH.dtype)
        return torch.bmm(weights_BGE, y_EBH.transpose(0, 1))


class GroupedLayer(_Experts):
    """Sort the picks of all gates by expert, gather, `F.grouped_mm`, weigh, add."""

    def __init__(self, width: int, hidden: Sequence[int], experts: int, gates: int, k: int) -> None:
        super().__init__(width, hidden, experts, gates)
        self.k = k

    def forward(self, x_BD: Tensor) -> Tensor:
        B, G = len(x_BD), self.gates
        top_BGK, experts_BGK = self.logits(x_BD).topk(self.k, dim=-1)
        picks = experts_BGK.flatten()
        order = picks.argsort(stable=True)
        bounds = torch.arange(self.experts, device=picks.device)
        ends_E = torch.searchsorted(picks[order], bounds, right=True).to(torch.int32)
        y = _padded(x_BD.to(torch.bfloat16)).index_select(0, order // (G * self.k))
        for weight_EDH, bias_EH in zip(self.weights, self.biases, strict=True):
            weight_EDH = _padded(weight_EDH.to(torch.bfloat16), dim=1)
            y = F.grouped_mm(y, weight_EDH, offs=ends_E)
            y = (y + bias_EH.to(y.dtype)[picks[order]]).relu()
        y = y * top_BGK.softmax(-1).flatten()[order].unsqueeze(-1).to(y.dtype)
        out = y.new_zeros(B * G, y.shape[1]).index_add(0, order // self.k, y)
        return out.view(B, G, -1)


def _padded(tensor: Tensor, dim: int = -1) -> Tensor:
    """With zeros up to whole packs of 16 bytes, which the grouped product asks for."""
    more = -tensor.shape[dim] % 8
    if more == 0:
        return tensor
    return F.pad(tensor, (0, more) if dim == -1 else (0, 0, 0, more))


if __name__ == "__main__":
    main()
