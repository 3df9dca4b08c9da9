"""One operator, forward and backward, against its specification; no pytest, a process of its own.

With a tool of compute-sanitizer the same runs under that, on few cases. Whole layers of the
operators are compared with the CPU's.
"""

import argparse
import copy
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from benchmarks.gpu_check.operator_cases import BUILDERS, as_numbers, calls_of, expected
from benchmarks.gpu_check.record import DEVICES, EXIT_LEFT_OUT, ROOT, opened
from mmoe.mixture import MLPExperts, MultiGateMixture, SoftmaxGate, TopKGate
from mmoe.mixture.experts.mlp import ExpertActivation

# Of the largest number, by the coarsest type of a call
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float64: 1e-12}
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 3  # what the tool ends with where it has something to report
B, D, G, E = 200, 21, 3, 6
LAYER_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def _layer(
    gate: nn.Module, execution: Literal["dense", "grouped"], activation: ExpertActivation
) -> MultiGateMixture:
    experts = MLPExperts(E, D, [40, 17], activation=activation)
    return MultiGateMixture(D, G, experts, gate=gate, execution=execution)


LAYERS: Mapping[str, Callable[[], MultiGateMixture]] = {
    "mixture-dense": lambda: _layer(SoftmaxGate(D, G, E), "dense", "silu"),
    "mixture-grouped": lambda: _layer(TopKGate(D, G, E, k=2), "grouped", "gelu"),
}
NAMES = (*BUILDERS, *LAYERS)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.smoke")
    parser.add_argument("operator", choices=NAMES)
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--few", action="store_true", help="two shapes of two types, each")
    parser.add_argument("--tool", choices=TOOLS, help="of compute-sanitizer, on few cases")
    settings = parser.parse_args(arguments)
    if settings.tool:
        sanitize(settings.tool, settings.operator, settings.device)
    # A few of these processes run at a time
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 4))
    try:
        with opened(settings.device) as device:
            print(check(settings.operator, device, settings.few))
    except ValueError as error:
        sys.exit(str(error))


def check(name: str, device: str, few: bool = False) -> str:
    """How many calls agreed, by operator."""
    if name in LAYERS:
        return check_layer(name, device)
    counts: Counter[str] = Counter()
    for words, (operator, arguments) in calls_of(name, few):
        found = getattr(torch.ops.mmoe, operator)(*to_device(arguments, device))
        call = operator, arguments
        pair = as_numbers(call, found), as_numbers(call, expected(call))
        compare(f"{operator}, {words}", *pair, coarsest(arguments))
        counts[operator] += 1
    if device == "cuda":
        torch.cuda.synchronize()
    return ", ".join(f"{operator} {count}" for operator, count in counts.items())


def to_device(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(to_device(part, device) for part in value)
    return value


def coarsest(value: Any) -> float:
    """The tolerance of the type with the fewest digits among these; 0 where there is none."""
    if isinstance(value, Tensor):
        return TOLERANCE.get(value.dtype, 0.0)
    if isinstance(value, torch.dtype):
        return TOLERANCE.get(value, 0.0)
    return max(map(coarsest, value), default=0.0) if isinstance(value, list | tuple) else 0.0


def compare(name: str, found: Any, wanted: Any, tolerance: float) -> None:
    """Refuses what is not equal within a tolerance, of the largest number."""
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            raise ValueError(f"{name}: expected {len(wanted)} results, got {len(found)}")
        for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            compare(f"{name}, result {number}", ours, theirs, tolerance)
        return
    found = found.cpu()
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        raise ValueError(
            f"{name}: expected {list(wanted.shape)} {wanted.dtype}, "
            f"got {list(found.shape)} {found.dtype}"
        )
    if not wanted.dtype.is_floating_point:
        if not torch.equal(found, wanted):
            places = int((found != wanted).sum())
            raise ValueError(f"{name}: {places} of {wanted.numel()} integers differ")
        return
    _compare_floats(name, found, wanted, tolerance)


def _compare_floats(name: str, found: Tensor, wanted: Tensor, tolerance: float) -> None:
    if not wanted.numel():
        return
    if not torch.equal(found.isnan(), wanted.isnan()):
        raise ValueError(f"{name}: NaN stands in other places than in the specification's result")
    found, wanted = found.nan_to_num(), wanted.nan_to_num()
    allowed = tolerance * max(1.0, float(wanted.abs().max()))
    difference = float((found.double() - wanted.double()).abs().max())
    if not difference <= allowed:
        raise ValueError(f"{name}: expected within {allowed:.3g}, got {difference:.3g} apart")


def sanitize(tool: str, operator: str, device: str) -> NoReturn:
    if device == "cpu" or shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH, or there is no GPU to watch")
        sys.exit(EXIT_LEFT_OUT)
    done = subprocess.run(command(tool, operator), cwd=ROOT)
    if done.returncode == FOUND:
        print(f"{tool} has something to report")
    sys.exit(done.returncode)


def command(tool: str, operator: str) -> list[str]:
    return [
        *("compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)),
        *("--print-limit", "20", sys.executable, "-m", "benchmarks.gpu_check.smoke"),
        *(operator, "--few"),
    ]


# Whole layers


def check_layer(name: str, device: str) -> str:
    """A training step of a whole layer on both devices, in each type."""
    for dtype, tolerance in LAYER_TOLERANCE.items():
        torch.manual_seed(0)
        layer = LAYERS[name]().to(dtype)
        x_BD = torch.randn(B, D, dtype=dtype)
        found = _step(copy.deepcopy(layer).to(device), x_BD.to(device))
        for number, (ours, theirs) in enumerate(zip(found, _step(layer, x_BD), strict=True)):
            allowed = tolerance * max(1e-3, float(theirs.abs().max()))
            difference = float((ours.cpu() - theirs).abs().max())
            if not difference <= allowed:
                raise ValueError(
                    f"{name}, {dtype}, result {number}: expected within {allowed:.3g} of the "
                    f"CPU's, got {difference:.3g} apart"
                )
    return f"{name}: as on the CPU"


def _step(layer: MultiGateMixture, x_BD: Tensor) -> list[Tensor]:
    x_BD = x_BD.requires_grad_()
    out_BGO = layer(x_BD).out_BGO
    leaves = [x_BD, *layer.parameters()]
    grads = torch.autograd.grad(out_BGO.square().mean(), leaves, allow_unused=True)
    return [out_BGO.detach(), *(grad for grad in grads if grad is not None)]


if __name__ == "__main__":
    main()
