"""What `dense_world.py` and `move_world.py` train: gates, kinds of experts, rows of ranks."""

from dataclasses import dataclass, field
from typing import Literal

import torch

from mmoe.config import EXPERTS, ExpertConfig
from tests.models.interactions import frozen_modules
from tests.parallel import odd_experts

TOP_1 = {"kind": "top_k", "k": 1}
TOP_2 = {"kind": "top_k", "k": 2}
GROUPED = {"execution": "grouped"}
ENTIRE = {"kind": "entire_space", "after": "click"}
BALANCED = {"balance_loss": 0.5, "z_loss": 0.1}


class CrossConfig(ExpertConfig):
    """Experts of somebody's."""

    kind: Literal["cross"] = "cross"


class Cross(torch.nn.Module):
    output_dim = 6

    def __init__(self, input_dim):
        super().__init__()
        self.left, self.right = torch.nn.Linear(input_dim, 6), torch.nn.Linear(input_dim, 6)

    def forward(self, x):
        return self.left(x) * self.right(x).sigmoid()


EXPERTS.add("cross", CrossConfig, Cross)
assert odd_experts.OddConfig().kind in EXPERTS.names()
ODD = {"expert": {"kind": "odd"}, "num_experts": 5}
ODD_AND_OTHERS = {
    "experts": [
        {"kind": "odd", "count": 3},
        {"kind": "mlp", "count": 2, "hidden": [8, 6]},
        {"kind": "odd", "count": 1},
    ]
}
# Of two tasks' gates, and on PLE's first level that of the shared experts
DECIDING_TOGETHER = {
    "joint": {"kind": "top_k", "select": "joint", "shared_k": 2, "private_k": 1},
    "budget": {"kind": "cosine", "k": 2, "select": "budget", "budget": 3},
    "joint within a budget": {
        "kind": "sigmoid", "select": "joint", "shared_k": 1, "private_k": 2, "budget": 4
    },
}  # fmt: skip
KINDS = {
    "experts": [
        {"kind": "mlp", "count": 2, "hidden": [8, 6]},
        {"kind": "cross", "count": 3},
        {"kind": "mlp", "count": 1, "hidden": [6], "activation": "silu"},
        {"kind": "dcn_v2", "count": 2, "output": 6, "rank": 3},
    ]
}
MORE_KINDS = {
    "experts": [
        {"kind": "mlp", "count": 1, "hidden": [6]},
        {"kind": "fm", "count": 2, "output": 6, "factors": 3},
        {"kind": "deepfm", "count": 1, "output": 6, "factors": 3, "hidden": [5]},
        {"kind": "masknet", "count": 2, "output": 6, "dim": 5, "mask_hidden": 4},
        {"kind": "autoint", "count": 1, "output": 6, "fields": 3, "field_dim": 4, "head_dim": 3},
        {
            "kind": "frozen",
            "count": 1,
            "output": 6,
            "module": f"{frozen_modules.__name__}:make_six",
        },
    ]
}


@dataclass(frozen=True)
class Case:
    gate: dict = field(default_factory=dict)
    experts: str = "replicated"
    model: dict = field(default_factory=dict)
    training: dict = field(default_factory=dict)
    dtype: str = "float64"
    # For each batch of a step, how many rows each rank has.
    rows: tuple[tuple[int, ...], ...] = ((6, 6, 6, 6),)
    no_chance: bool = False  # noise is 0, and every chance is taken alike
    twice: bool = False  # train again, and compare the bits
    buy: dict = field(default_factory=dict)  # keys of the second task
    parallel: dict = field(default_factory=dict)


CASES = {
    f"{model}, {name}, {experts}": Case(gate, experts, {"kind": model})
    for model in ("mmoe", "ple")
    for name, gate in (("dense", {}), ("top-1", TOP_1), ("top-2", TOP_2))
    for experts in ("replicated", "spread")
}
CASES |= {
    f"{name}, fp32": Case(**vars(case) | {"dtype": "float32", "twice": "top-2" in name})
    for name, case in CASES.items()
    if name in ("mmoe, top-2, spread", "ple, dense, spread")
}
EMPTY, SOME_EMPTY, TWO_BATCHES = ((0, 7, 3, 1),), ((3, 7, 0, 1),), ((4, 4, 4, 4), (5, 0, 1, 0))
CASES |= {
    **{
        # Replicated, kinds differ in nothing that ranks do
        f"{kind}, {experts}": Case({}, experts, {"kind": kind})
        for kind, experts in (
            *((kind, "spread") for kind in ("omoe", "shared_bottom", "single_task", "esmm")),
            ("cgc", "replicated"),
            ("cgc", "spread"),
        )
    },
    **{
        f"balanced {kind}, {experts}": Case(
            {"kind": kind, "balance_scope": scope, **BALANCED},
            experts,
            rows=SOME_EMPTY,
            no_chance=True,
        )
        for kind, scope, experts in (
            ("softmax", "gate", "replicated"),
            ("top_k", "all", "spread"),
            ("noisy_top_k", "all", "spread"),
            ("switch", "gate", "spread"),
            ("gshard", "gate", "spread"),
            ("cosine", "gate", "spread"),
            ("sigmoid", "all", "replicated"),
            ("dselect_k", "gate", "spread"),
            ("static", "gate", "replicated"),
        )
    },
    "balanced static dselect_k": Case(
        {"kind": "dselect_k", "per_sample": False, **BALANCED}, rows=SOME_EMPTY
    ),
    "balanced levels": Case(TOP_2 | BALANCED, "spread", {"kind": "ple"}, rows=SOME_EMPTY),
    **{
        f"{name}, {experts}": Case(
            DECIDING_TOGETHER[name] | BALANCED, experts, model, rows=rows, twice=True
        )
        for name, experts, model, rows in (
            ("joint", "replicated", {}, SOME_EMPTY),
            ("budget", "spread", {"kind": "ple"}, ((6, 6, 6, 6),)),
            ("joint within a budget", "spread", {"kind": "ple"}, ((6, 6, 6, 6),)),
        )
    },
    "auto": Case(TOP_2, "auto"),
    "E < W": Case({}, "spread", {"num_experts": 1}, {"gradient_clip": 0.05}),
    "E < W, PLE": Case({}, "spread", {"kind": "cgc", "task_experts": 1, "shared_experts": 1}),
    "uneven experts": Case(TOP_2, "spread", {"num_experts": 7}),
    "uneven rows": Case(TOP_2, "spread", rows=((1, 12, 5, 2),)),
    "empty rank": Case(TOP_2, "spread", rows=EMPTY),
    "empty rank, PLE, replicated": Case({}, model={"kind": "ple"}, rows=EMPTY),
    "one rank with rows": Case({}, "spread", {"kind": "ple"}, rows=((0, 9, 0, 0),)),
    "batches together": Case(
        TOP_2 | BALANCED, "spread", rows=((4, 4, 4, 4), (0, 3, 1, 0)), twice=True
    ),
    "batches together, replicated": Case(BALANCED, rows=TWO_BATCHES),
    "batch norm": Case(TOP_2, "spread", {"expert": {"norm": "batch", "hidden": [8, 6]}}),
    "batch norm, replicated": Case(
        TOP_2, model={"expert": {"norm": "batch", "hidden": [8, 6]}}, rows=SOME_EMPTY
    ),
    "layer norm": Case(TOP_2, "spread", {"expert": {"norm": "layer", "hidden": [8, 6]}}),
    "kinds of experts": Case(TOP_2, "spread", KINDS, twice=True),
    "kinds of experts, dense gates": Case({}, "spread", KINDS, rows=EMPTY),
    "more kinds": Case(TOP_2, "spread", MORE_KINDS, twice=True),
    "more kinds, replicated": Case(TOP_2, model=MORE_KINDS, rows=SOME_EMPTY),
    "modules that differ": Case(TOP_2, "spread", ODD, twice=True),
    "modules that differ, replicated": Case(TOP_2, model=ODD),
    "modules that differ, E < W": Case({}, "spread", {**ODD, "num_experts": 1}),
    "modules that differ and others": Case(TOP_2, "spread", ODD_AND_OTHERS, rows=SOME_EMPTY),
    "experts of somebody's, PLE": Case(
        TOP_2, "spread", {"kind": "ple", "expert": {"kind": "cross"}}
    ),
    **{
        f"{name}, {experts}": Case(gate, experts, model, buy=buy, rows=rows)
        for name, experts, gate, model, buy, rows in (
            ("AITM", "spread", TOP_2, {"transfer": "aitm"}, {"after": "click"}, SOME_EMPTY),
            (
                "DBMTL",
                "replicated",
                {},
                {"transfer": "dbmtl", "kind": "ple"},
                {"after": "click"},
                SOME_EMPTY,
            ),
            ("IPS", "replicated", {}, {}, {**ENTIRE, "counterfactual": "ips"}, TWO_BATCHES),
            ("DR", "spread", TOP_2, {}, {**ENTIRE, "counterfactual": "dr"}, TWO_BATCHES),
        )
    },
    **{
        f"two groups, {name}": Case(
            gate, "spread", model, rows=rows, twice=True, parallel={"replicas": 2}
        )
        for name, gate, model, rows in (
            ("top-2", TOP_2 | BALANCED, {}, SOME_EMPTY),
            ("dense", {}, {"kind": "ple"}, EMPTY),
            ("batch norm", TOP_2, {"expert": {"norm": "batch", "hidden": [8, 6]}}, SOME_EMPTY),
            ("modules that differ", TOP_2, ODD_AND_OTHERS, ((6, 6, 6, 6), (1, 4, 0, 2))),
            ("E < M", {}, {"num_experts": 1}, EMPTY),
        )
    },
    "three experts a rank": Case(TOP_2, "spread", twice=True, parallel={"experts_per_rank": 3}),
    "as many groups as ranks": Case(TOP_2, "spread", parallel={"experts_per_rank": 6}),
    "bf16": Case(TOP_2, "spread", GROUPED, {"precision": "bf16"}, dtype="float32"),
    "bf16, replicated": Case({}, training={"precision": "bf16"}, dtype="float32"),
}
