"""One operator, forward and backward, against its specification; no pytest, a process of its own.

python -m benchmarks.gpu_check.smoke OPERATOR [--device cuda|cpu|emulated] [--few]
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check import layer_cases
from benchmarks.gpu_check.device import DEVICES, opened
from benchmarks.gpu_check.operator_cases import BUILDERS, as_numbers, calls_of, expected

# Of the largest number, by the coarsest type of a call
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float64: 1e-12}
NAMES = (*BUILDERS, *layer_cases.LAYERS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints how many calls agreed; stops at the first that does not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.smoke")
    parser.add_argument("operator", choices=NAMES)
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--few", action="store_true", help="two shapes of two types, each")
    settings = parser.parse_args(arguments)
    # A few of these processes run at a time
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 4))
    try:
        with opened(settings.device) as device:
            print(check(settings.operator, device, settings.few))
    except ValueError as error:
        sys.exit(str(error))


def check(name: str, device: str, few: bool = False) -> str:
    """How many calls agreed, by operator.

    Raises:
        ValueError: A result is not the specification's.
    """
    if name in layer_cases.LAYERS:
        return layer_cases.check(name, device)
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
    """The same with every tensor in it on the device."""
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
    """Refuses what is not equal within a tolerance, of the largest number.

    Raises:
        ValueError: With the name and the largest difference.
    """
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


if __name__ == "__main__":
    main()
