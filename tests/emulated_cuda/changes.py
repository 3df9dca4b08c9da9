"""Checks of calls in which one number is another: of a plan, links, offsets, a code, a size."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.gpu_check.operator_cases import Call, as_numbers, expected
from tests.emulated_cuda.check import Check, Stop, stop_of
from tests.emulated_cuda.device import Kernels
from tests.ops.exchange_world import PICKS, ROWS

_INTEGERS = (torch.int32, torch.int64)


def changed_calls(kernels: Kernels, checks: Sequence[Check]) -> Iterator[Check]:
    """One number in place of another: where the CPU refuses it the kernel stops too.

    Where the CPU takes it the kernel gives what the specification does. Of each operator and
    argument in three calls: the first, the smallest, of a single block, and the last; and in one of
    an exchange whose ranks send sums back. What a kernel answers otherwise (a number that
    contradicts the others) is no check.
    """
    checks = [check for check in checks if _size(check.call) < 20_000]  # each is run many times
    by_size = sorted(checks, key=lambda check: _size(check.call))
    of_sums = [check for check in checks if "sums" in check.name]
    for chosen in (checks, by_size, checks[::-1], of_sums):
        seen: set[tuple[str, int]] = set()
        for check in chosen:
            name, arguments = check.call
            for position in range(len(arguments)):
                others = list(_other_values(name, arguments, position))
                if others and (name, position) not in seen:
                    seen.add((name, position))
                    yield from _checks_of(kernels, check, position, others)


def _size(call: Call) -> int:
    return sum(leaf.numel() for leaf in pytree.tree_leaves(call[1]) if isinstance(leaf, Tensor))


def _other_values(
    name: str, arguments: Sequence[Any], position: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What stands in an argument's place, in words, and how it is made."""
    value = arguments[position]
    if isinstance(value, int) and not isinstance(value, bool):
        for number in (value - 1, value + 1):
            yield f"is {number}", lambda number=number: number
    elif isinstance(value, Tensor) and value.dtype in _INTEGERS and 0 < value.numel() < 3000:
        for place, number in _numbers(arguments, value):
            yield (
                f"at {place} is {number}",
                lambda place=place, number=number: _with(value, place, number),
            )
    elif name == "decode_picks" and position == 0:
        yield from _other_codes(*arguments)


def _numbers(arguments: Sequence[Any], value: Tensor) -> Iterator[tuple[int, int]]:
    """Every size of the call in place of a number, one less and one more; and what is below 0."""
    leaves = pytree.tree_leaves(arguments)
    sizes = {n for leaf in leaves if isinstance(leaf, Tensor) for n in (*leaf.shape, leaf.numel())}
    sizes |= {leaf for leaf in leaves if isinstance(leaf, int) and not isinstance(leaf, bool)}
    numbers = sorted({-1, -2, *(n + step for n in sizes for step in (-1, 0, 1) if n < 2**30)})
    flat = value.reshape(-1).tolist()
    places = {0, len(flat) // 2, len(flat) - 1}
    of_links = range(len(flat)) if value.dtype == torch.int64 else ()
    for place in sorted(places.union(of_links)):
        near = {flat[place] + 1, flat[place] - 1}
        for number in sorted({*numbers, *near} if place in places else near):
            yield place, number


def _with(value: Tensor, place: int, number: int) -> Tensor:
    changed = value.reshape(-1).clone()
    changed[place] = number
    return changed.view(value.shape)


def _other_codes(
    message: Tensor, links_WL: Tensor, rows: int, picks: int, *sizes: Any
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Of the first pick of a message: none of outbound_plan's; and one row more than there are."""
    G, K, experts, width, _, wire = sizes
    if not picks or not int(links_WL[1, ROWS]):
        return
    begin = int(links_WL[1, ROWS]) * width * wire.itemsize
    most = G * K * experts
    for code in (0, experts, most - 1, most, -1, -most, -1 - most, 2**31 - 1, -(2**31)):
        yield f"begins with code {code}", partial(_with_code, message, begin, code)
    codes = message[begin : begin + 4 * int(links_WL[1, PICKS])].clone().view(torch.int32)
    for place in codes.ge(0).nonzero().flatten()[:1].tolist():
        other = partial(_with_code, message, begin + 4 * place, -1 - int(codes[place]))
        yield f"has a row more, from code {place}", other


def _with_code(message: Tensor, begin: int, code: int) -> Tensor:
    bytes_of_code = torch.tensor([code], dtype=torch.int32).view(torch.uint8)
    return torch.cat((message[:begin], bytes_of_code, message[begin + 4 :]))


def _checks_of(
    kernels: Kernels,
    check: Check,
    position: int,
    others: Sequence[tuple[str, Callable[[], Any]]],
) -> Iterator[Check]:
    name, arguments = check.call
    for number, (words, make) in enumerate(others):
        call = name, (*arguments[:position], make(), *arguments[position + 1 :])
        order = replace(check.settings, order=("forward", "backward")[number % 2])
        words = f"{name}: argument {position} {words}"
        one = replace(check, name=words, call=call, settings=order, wanted=_given_by_cpu(call))
        if one.wanted is None:
            with one.configured(kernels):
                one = replace(one, wanted=stop_of(kernels, call))
        if one.wanted is not None and (isinstance(one.wanted, Stop) or _holds(kernels, one)):
            yield one


def _given_by_cpu(call: Call) -> Any:
    """What the specification gives; None where the CPU refuses the call, or the specification."""
    name, arguments = call
    try:
        getattr(torch.ops.mmoe, name)(*arguments)
    except (ValueError, RuntimeError):
        return None
    with suppress(ValueError, RuntimeError, IndexError):  # the specification is stricter
        return as_numbers(call, expected(call))
    return None


def _holds(kernels: Kernels, check: Check) -> bool:
    try:
        check.run(kernels)
    except (AssertionError, RuntimeError, ValueError):
        return False
    return True
