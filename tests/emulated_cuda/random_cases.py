"""Cases drawn by a seed: sizes, types, and how their tensors lie in memory."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.operator_cases import BUILDERS, Call, Case
from tests.ops.exchange_world import STEPS, World
from tests.ops.exchange_world import Case as Ranks

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
# Of rows, and of what travels
WIRES = [(rows, wire) for rows in DTYPES for wire in DTYPES if wire.itemsize <= rows.itemsize]
NOT_DRAWN = ("exchange",)  # its operators are drawn one by one, as ranks
OPERATORS = tuple(name for name in BUILDERS if name not in NOT_DRAWN)
PLANNING = {"outbound_plan": "planning", **STEPS}
# Arguments with a row for each pair, and a tail
_ROWS_OF_PAIRS = {
    "grouped_mm": (0,),
    "grouped_mm_backward": (0, 1, 4, 5),
    "gathered_mm_backward": (0, 5, 6),
    "gated_combine": (0,),
    "gated_combine_backward": (1,),
}
# Pairs of calls, forward and backward, in a case of one type of weights
_WAYS = {"grouped_mm": 4, "gathered_mm": 4, "dense_mm": 8}
# What stands around a tensor's numbers: NaN, or a number of no row
_AROUND = {torch.bool: True, torch.uint8: 0x7F}
_NO_ROW = 0x7FFF7FFF


def width(draw: random.Random, most: int) -> int:
    """Odd ones, and such as fit packs of 4, 8 and 16 bytes and no more."""
    step = draw.choice((1, 1, 1, 2, 4, 8, 16))
    return step * draw.randint(1, most // step)


def usual(draw: random.Random) -> Case:
    """A few experts and gates."""
    E = draw.randint(2, 20)
    return Case(draw.randint(1, 60), draw.randint(1, 4), draw.randint(1, 2), E, *_pair(draw, 150))


def wide(draw: random.Random) -> Case:
    """More than one tile of columns."""
    return Case(draw.randint(1, 40), 1, 1, draw.randint(1, 4), *_pair(draw, 300))


def crowded(draw: random.Random) -> Case:
    """Large tiles, and weights' gradients in several parts."""
    E = draw.randint(1, 2)
    return Case(512 * E + draw.randint(1, 99), 1, 1, E, *_pair(draw, 140))


def many_experts(draw: random.Random) -> Case:
    """More than there are pointers in a table, most without rows."""
    E = draw.randint(90, 150)
    return Case(draw.randint(1, 20), draw.randint(1, 3), 1, E, *_pair(draw, 24))


def many_gates(draw: random.Random) -> Case:
    """More than are added up at once."""
    G = draw.choice((draw.randint(5, 12), draw.randint(13, 32), draw.randint(33, 70)))
    return Case(draw.randint(1, 20), G, 2, draw.randint(2, 9), *_pair(draw, 70))


def thin(draw: random.Random) -> Case:
    """Sizes of 1."""
    B, E, D, H = (draw.choice((1, 1, 2, 7)) for _ in range(4))
    return Case(B, draw.choice((1, 2)), 1, E, D, H)


def packed(draw: random.Random) -> Case:
    """Widths that fit packs of 16 bytes, and no tensor lies otherwise than PyTorch makes it."""
    widths = 8 * draw.randint(1, 20), 8 * draw.randint(1, 20)
    return Case(draw.randint(1, 40), draw.randint(1, 4), 1, draw.randint(2, 9), *widths)


def of_gates(G: int, packs: bool, draw: random.Random) -> Case:
    """As many gates, of few samples; widths that fit packs of 16 bytes, or any."""
    D, H = _pair(draw, 70)
    D, H = (8 * (D // 8 + 1), 8 * (H // 8 + 1)) if packs else (D, H)
    return Case(draw.randint(1, 9), G, 1, draw.randint(2, 9), D, H)


def deep(draw: random.Random) -> Case:
    """A product's depth in many steps, forward or backward."""
    D, H = draw.randint(300, 1024), width(draw, 64)
    return Case(draw.randint(1, 70), 1, 1, draw.randint(1, 2), *draw.choice(((D, H), (H, D))))


KINDS: Mapping[str, Callable[[random.Random], Case]] = {
    kind.__name__: kind for kind in (usual, wide, crowded, many_experts, many_gates, thin, packed)
}


def _pair(draw: random.Random, most: int) -> tuple[int, int]:
    return width(draw, most), width(draw, most)


def drawn_case(kind: Callable[[random.Random], Case], draw: random.Random) -> Case:
    """A case of a kind; in some, picks are unused and experts without rows."""
    case = kind(draw)
    return replace(case, unused=case.K < case.E and draw.random() < 0.5)


def drawn_calls(name: str, case: Case, dtype: torch.dtype, draw: random.Random) -> Iterator[Call]:
    """An operator's calls, forward and backward, of one activation and type of the weights."""
    ways = _WAYS.get(name, 1) * (2 if dtype == torch.bfloat16 else 1)
    first = 2 * draw.randrange(ways) if name in _WAYS else 0
    for call in islice(BUILDERS[name](case, dtype), first, first + 2 if name in _WAYS else None):
        yield call[0], with_bad_tails(case, call)


def with_bad_tails(case: Case, call: Call) -> tuple[Any, ...]:
    """NaN in the rows that are no pair's: nobody may read them."""
    name, arguments = call[0], list(call[1])
    picked = case.experts_BGK().flatten(1)
    pairs = sum(len(row[row >= 0].unique()) for row in picked)
    for at in _ROWS_OF_PAIRS.get(name, ()):
        if arguments[at].dim() == 2:  # or z is not kept
            arguments[at] = arguments[at].clone()
            arguments[at][pairs:] = math.nan
    return tuple(arguments)


def drawn_ranks(dtype: torch.dtype, wire: torch.dtype, draw: random.Random) -> Ranks:
    """Ranks, some without rows or experts."""
    W, E = draw.randint(1, 4), draw.randint(1, 12)
    homes = [draw.randrange(W) for _ in range(E)]
    held = tuple(tuple(e for e in range(E) if homes[e] == rank) for rank in range(W))
    K = draw.randint(1, 4)
    picks = ["anything", *["distinct"] * (K <= E), *["one"] * bool(held[-1])]
    return Ranks(
        "drawn",
        rows=tuple(draw.choice((0, 1, 5, 20, 20, 40)) for _ in range(W)),
        held=held,
        G=draw.randint(1, 12),
        K=K,
        S=draw.randint(1, 3),
        D=width(draw, 70),
        O=width(draw, 70),
        picks=draw.choice(picks),
        ways=draw.choice(("mixed", "pairs", "sums")),
        dtype=dtype,
        wire=wire,
    )


def drawn_exchange(name: str, dtype: torch.dtype, wire: torch.dtype, draw: random.Random) -> Call:
    """What a rank gives an operator of an exchange; its rows travel in the type of the wire."""
    case = drawn_ranks(dtype, wire, draw)
    return name, tuple(getattr(World(case), PLANNING[name])(draw.randrange(case.W)))


def rows_cut_out(dtype: torch.dtype, device: str = "cpu") -> Iterator[Call]:
    """dense_combine of rows that begin on packs of 16 bytes, by width and distance packs or not."""
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    for width, apart in ((17, 24), (16, 17), (16, 24)):
        generator = torch.Generator().manual_seed(width)
        rooms = [torch.full((5, apart), math.nan, dtype=dtype) for _ in range(3)]
        for room in rooms:
            room[:, :width] = torch.randn(5, width, generator=generator)
        y = [room.to(device)[:, :width] for room in rooms]  # a copy of a part has no gaps
        weights_BGE = torch.randn(5, 2, 3, generator=generator).to(device, sums)
        grad_BGO = torch.randn(5, 2, width, generator=generator).to(device, dtype)
        yield "dense_combine", (y, weights_BGE)
        yield "dense_combine_backward", (grad_BGO, y, weights_BGE)


def laid_out(value: Any, device: str, draw: random.Random) -> Any:
    """The same numbers on a device, in memory that is often as inconvenient as PyTorch allows.

    Cut out of a larger tensor at an odd place, rows apart, or the last two dimensions swapped.
    """
    if isinstance(value, list | tuple):
        return type(value)(laid_out(part, device, draw) for part in value)
    if not isinstance(value, Tensor):
        return value
    way = draw.choice(("as it is", "cut out", "cut out", "rows apart", "swapped"))
    if way == "as it is":
        return value.to(device)
    strides = _strides(value, way, draw.randint(1, 8))
    # Of a message, whose parts begin at even places, no odd one
    offset = draw.randint(1, 8) * (2 if value.dtype == torch.uint8 else 1)
    size = 16 + offset + sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True))
    around = _AROUND.get(value.dtype, math.nan if value.is_floating_point() else _NO_ROW)
    room = torch.full((max(size, 16),), around, dtype=value.dtype)
    room.as_strided(value.shape, strides, offset).copy_(value)
    return room.to(device).as_strided(value.shape, strides, offset)


def shifted(value: Any, by: int = 1) -> Any:
    """The same without gaps, so many numbers (or bytes) beyond where packs of 16 bytes begin."""
    if isinstance(value, list | tuple):
        return type(value)(shifted(part, by) for part in value)
    if not isinstance(value, Tensor) or value.dtype not in (*DTYPES, torch.uint8):
        return value
    room = torch.full((value.numel() + by,), _AROUND.get(value.dtype, math.nan), dtype=value.dtype)
    room[by:] = value.reshape(-1)
    return room[by:].view(value.shape)


def _strides(tensor: Tensor, way: str, apart: int) -> list[int]:
    """Row by row, or with the last two dimensions swapped."""
    order = list(range(tensor.dim()))
    if way == "swapped" and tensor.dim() > 1:
        order[-2:] = order[-1], order[-2]
    strides, step = [0] * tensor.dim(), 1
    for at, dimension in enumerate(reversed(order)):
        strides[dimension] = step
        step *= max(1, tensor.shape[dimension])
        if at == 0 and way == "rows apart":
            step += apart
    return strides
