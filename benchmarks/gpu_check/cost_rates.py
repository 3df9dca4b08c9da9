"""Measures the rates by which `auto` chooses between dense and grouped execution.

Prints them beside those of `mmoe/mixture/cost_rates.jsonl`, and writes a line in the form of that
table, `cost_rates_DEVICE.jsonl` beside the record: put in the place of the table's, it is the
default. Calls are timed as in `kernels`; what a call costs without rows, by the host's clock.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from benchmarks.gpu_check.contest import Call, timed
from benchmarks.gpu_check.record import MEASURED, machine_name, opened_record, process_options
from mmoe import ops
from mmoe.mixture import MLPExperts, MultiGateMixture, TopKGate
from mmoe.mixture.execution import CostRates, ProductRates, rates_of

KEY = "rivals/rates of auto"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Sizes:
    rows: int
    width: int
    experts: int
    picks: int = 4


FULL = {"cuda": Sizes(16_384, 512, 16), "cpu": Sizes(2_048, 256, 8)}
SMALL = Sizes(64, 16, 4)
CALLS, ROUNDS = 20, 7


def main(arguments: Sequence[str] | None = None) -> None:
    settings = process_options("cost_rates").parse_args(arguments)
    record = opened_record(settings)
    device, name = settings.device, machine_name(settings.device)
    rates = measure(device, SMALL if settings.small else FULL[device], name)
    if settings.small:
        rates = replace(rates, source=f"{rates.source}, of a rehearsal's sizes: means nothing")
    record.add(KEY, MEASURED, rates=asdict(rates))
    place = settings.record.with_name(f"cost_rates_{device}.jsonl")
    place.write_text(rates.as_line() + "\n", encoding="utf-8")
    print("\n".join(beside(rates, rates_of(device))))
    print(f"written to {place}")


def measure(device: str, sizes: Sizes, machine: str) -> CostRates:
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return CostRates(
        device=device,
        source=f"measured {date} on {machine}: benchmarks.gpu_check.cost_rates",
        dense=_product_rates(_dense_seconds, device, sizes),
        grouped=_product_rates(_grouped_seconds, device, sizes),
        rows_per_block=rates_of(device).rows_per_block,
        bytes_per_second=_bytes_per_second(device, sizes),
        seconds_per_pick=_seconds_per_pick(device, sizes),
        seconds_per_grouped_call=_seconds_per_grouped_call(device),
    )


def beside(measured: CostRates, table: CostRates) -> list[str]:
    found = [f"{'':<26} {'measured':>12} {'table':>12} {'ratio':>8}"]
    for key, ours, theirs in _numbers(measured, table):
        ratio = f"{ours / theirs:.2f}" if theirs else ""
        found.append(f"{key:<26} {ours:>12.3g} {theirs:>12.3g} {ratio:>8}")
    return [*found, f"the table's: {table.source}"]


def _numbers(measured: CostRates, table: CostRates) -> list[tuple[str, float, float]]:
    found, theirs = [], asdict(table)
    for key, value in asdict(measured).items():
        if isinstance(value, dict):
            found += [(f"{key} {kind}", rate, theirs[key][kind]) for kind, rate in value.items()]
        elif not isinstance(value, str):
            found.append((key, value, theirs[key]))
    return found


def _product_rates(
    seconds: Callable[[str, Sizes, torch.dtype], float], device: str, sizes: Sizes
) -> ProductRates:
    """Of a forward product of all rows: each of them is one row of one expert."""
    flops = 2.0 * sizes.rows * sizes.width**2
    return ProductRates(
        **{name: flops / seconds(device, sizes, dtype) for name, dtype in DTYPES.items()}
    )


def _layer(device: str, sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    D, E = sizes.width, sizes.experts
    x_PD = torch.randn(sizes.rows, D, generator=generator, device=device)
    weight_EDD = torch.randn(E, D, D, generator=generator, device=device) / D**0.5
    return x_PD.to(dtype), weight_EDD.to(dtype)


def _dense_seconds(device: str, sizes: Sizes, dtype: torch.dtype) -> float:
    x_PD, weight_EDD = _layer(device, sizes, dtype)
    x_BD = x_PD[: sizes.rows // sizes.experts].contiguous()
    return _seconds(lambda _: ops.dense_mm(x_BD, weight_EDD, activation="relu"), device)


def _grouped_seconds(device: str, sizes: Sizes, dtype: torch.dtype) -> float:
    x_PD, weight_EDD = _layer(device, sizes, dtype)
    step = sizes.rows // sizes.experts
    offsets_E1 = torch.arange(0, sizes.rows + 1, step, device=device).int()
    return _seconds(
        lambda _: ops.grouped_mm(x_PD, offsets_E1, weight_EDD, activation="relu"), device
    )


def _bytes_per_second(device: str, sizes: Sizes) -> float:
    rows = sizes.rows * (16 if device == "cuda" else 4)
    sets = [torch.zeros(rows, sizes.width, device=device) for _ in range(4)]
    to = torch.zeros_like(sets[0])
    moved = 2 * to.numel() * to.element_size()
    return moved / _seconds(lambda n: to.copy_(sets[n]), device, len(sets))


def _seconds_per_pick(device: str, sizes: Sizes) -> float:

    def plan(rows: int) -> float:
        generator = torch.Generator(device).manual_seed(0)
        scores = torch.rand(rows, 1, sizes.experts, generator=generator, device=device)
        experts_BGK = scores.topk(min(sizes.picks, sizes.experts)).indices.int()
        return _seconds(lambda _: ops.route_plan(experts_BGK, sizes.experts), device)

    more = sizes.rows * 4
    added = (more - sizes.rows) * min(sizes.picks, sizes.experts)
    return max(0.0, plan(more) - plan(sizes.rows)) / added


def _seconds_per_grouped_call(device: str) -> float:
    """How much longer a step of few rows takes grouped than dense, launches included."""
    took = {}
    for execution in ("dense", "grouped"):
        torch.manual_seed(0)
        gate = TopKGate(8, 1, 4, k=2)
        layer = MultiGateMixture(8, 1, MLPExperts(4, 8, [8]), gate=gate, execution=execution)
        layer = layer.to(device)
        x_BD = torch.ones(4, 8, device=device)

        def step(layer: MultiGateMixture = layer, x_BD: Tensor = x_BD) -> None:
            layer(x_BD).out_BGO.sum().backward()

        took[execution] = _host_seconds(step, device)
    return max(0.0, took["grouped"] - took["dense"])


def _seconds(call: Call, device: str, sets: int = 1) -> float:
    return timed(call, device, sets, ROUNDS).low


def _host_seconds(step: Callable[[], None], device: str) -> float:

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def once() -> float:
        wait()
        started = time.perf_counter()
        for _ in range(CALLS):
            step()
        wait()
        return (time.perf_counter() - started) / CALLS

    once()
    return min(once() for _ in range(ROUNDS))


if __name__ == "__main__":
    main()
