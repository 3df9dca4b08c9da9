"""What `world.py` and `modes_world.py` send: gates, experts, rows of ranks."""

import random
from dataclasses import dataclass, replace

from mmoe.parallel import Mode
from mmoe.parallel.experts.mode import ROWS_TRAVEL

D, G = 16, 3  # experts return the width that they read, so that layers can be stacked


@dataclass(frozen=True)
class Case:
    gate: str = "top-2"
    num_experts: int = 6
    rows: tuple[int, ...] = (8, 8, 8, 8)
    pool: str = "mlp"
    dtype: str = "float64"
    way_back: str = "auto"
    wire_dtype: str | None = None
    sources: int = 1
    mixed: bool = False  # experts are dealt out in no order, one rank gets none
    input_grad: bool = True
    gate_grad: bool = True
    sees_all: bool = True  # else gate g does not see expert g
    levels: int = 1
    autocast: bool = False
    overlap: bool = False  # own rows are computed while others travel
    mode: Mode = ROWS_TRAVEL


CASES = {
    "top-1": Case("top-1"),
    "top-2": Case(),
    "top-2, fp32": Case(dtype="float32"),
    "top-2, bf16 wire": Case(dtype="float32", wire_dtype="bfloat16"),
    # The most that a row can ask for is more sums than what this one asks for is pairs
    "first two, bf16 wire": Case("first two", 12, dtype="float32", wire_dtype="bfloat16"),
    "top-2, pairs": Case(way_back="pairs"),
    "top-2, sums": Case(way_back="sums"),
    "dense": Case("dense"),
    "dense of 14": Case("dense", 14),
    "dense of 14, pairs": Case("dense", 14, way_back="pairs"),
    "dense of 14, sums": Case("dense", 14, way_back="sums"),
    "first two": Case("first two"),
    "any picks": Case("any"),
    "any picks, sums": Case("any", num_experts=3, way_back="sums"),
    "visibility": Case(sees_all=False),
    "visibility, dense": Case("dense", 10, sees_all=False),
    "batch norm": Case(pool="batch"),
    "autocast": Case(dtype="float32", autocast=True),
    "two levels": Case(levels=2, rows=(5, 0, 3, 9)),
    "two levels of sources, E < W": Case("dense", 1, levels=2, sources=2, rows=(2, 4, 3, 0)),
    "modules": Case(pool="modules"),
    "modules, E < W": Case(pool="modules", num_experts=1, gate="dense"),
    "E < W": Case("dense", num_experts=1),
    "uneven experts": Case(num_experts=7),
    "mixed experts": Case(num_experts=5, mixed=True),
    "uneven rows": Case(rows=(7, 2, 1, 30)),
    "a rank without rows": Case(rows=(5, 0, 3, 0)),
    "one rank with rows": Case("dense", rows=(0, 6, 0, 0)),
    "no rows": Case(rows=(0, 0, 0, 0)),
    "sources": Case(sources=3, num_experts=5),
    "sources, sums": Case(sources=3, num_experts=5, way_back="sums"),
    "sources, uneven": Case("dense", sources=2, num_experts=4, rows=(3, 0, 5, 1), mixed=True),
    "inputs without gradient": Case(input_grad=False),
    # A rank without experts has nothing then that needs a gradient, and yet its part to do.
    "experts alone, E < W": Case("dense", num_experts=1, input_grad=False, gate_grad=False),
}


def drawn(seed):
    """A case that nobody thought of."""
    chance = random.Random(seed)
    return Case(
        chance.choice(["any", "any", "top-1", "dense"]),
        num_experts=chance.randint(1, 9),
        rows=tuple(chance.choice([0, 1, 2, 5, 20]) for _ in range(4)),
        way_back=chance.choice(["auto", "auto", "pairs", "sums"]),
        sources=chance.randint(1, 3),
        mixed=chance.random() < 0.5,
        levels=chance.randint(1, 2),
        overlap=chance.random() < 0.5,
    )


# Where gates pick, and how outputs come back, is the same whether own rows are computed meanwhile
ALIKE = ("fp32", ", pairs", ", sums", "first two", "visibility", "uneven experts", "sources")
CASES |= {
    f"{name}, overlapped": replace(case, overlap=True)
    for name, case in CASES.items()
    if not name.endswith(ALIKE)
}
CASES |= {f"drawn {seed}": drawn(seed) for seed in range(6)}
# What two ranks compute too
ON_TWO = (
    "top-2", "dense", "dense of 14", "dense of 14, pairs", "dense of 14, sums", "E < W, overlapped",
    "dense of 14, overlapped", "mixed experts", "uneven rows", "a rank without rows", "batch norm",
    "two levels", "sources, uneven", "modules, E < W", "drawn 0", "drawn 1", "drawn 2",
)  # fmt: skip
