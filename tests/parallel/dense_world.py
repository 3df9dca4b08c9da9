"""One rank of a gloo world that trains networks over ranks, and on its own; run by the tests.

Every rank takes some training steps of each case with the others, on its rows; and one of them
takes them alone, on the rows of all. What a rank finds is its report: for each case the largest
errors.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

from mmoe.checkpoint.resume_state import flatten_optimizer
from mmoe.config import EXPERTS, ExpertConfig, RunConfig
from mmoe.datasets.rows.batch import Batch
from mmoe.embeddings import Lookups
from mmoe.models import Ranker, build_network
from mmoe.models.build import relate_tasks
from mmoe.parallel import Shard, expert_shards, parameters_by_replicas, replicated_parameters
from mmoe.train.optim import build_average, build_optimizer
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import ONE_PROCESS, StepRanks
from tests.models.interactions import frozen_modules
from tests.own_kinds import own_keys
from tests.parallel import odd_experts
from tests.ranks import PATIENCE, one_group, shared_out
from tests.runs import train_step

# What is trained: gates, kinds of experts, rows of ranks

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


# How it is trained

D, F, STEPS = 10, 3, 2
TASKS = ("click", "buy")


def make_config(case):
    expert = {"hidden": [8, 6], "activation": "gelu"}
    model = {"expert": expert, "gate": case.gate, "num_experts": 6, **case.model}
    if "experts" in model:
        del model["expert"], model["num_experts"]
    model = own_keys(model)
    training = {
        "optimizer": {"kind": "adamw", "weight_decay": 0.1, "learning_rate": 0.01},
        "gradient_clip": 0.2,
        "ema_decay": 0.9,
        **case.training,
    }
    tasks = [{"name": name, "label": name} for name in TASKS]
    tasks[1] |= case.buy
    if case.model.get("kind") == "esmm":
        tasks[1]["observed_when"] = TASKS[0]
    return RunConfig.model_validate(
        {
            "features": [{"name": "x", "kind": "numeric"}],
            "tasks": tasks,
            "model": model,
            "training": training,
            "parallel": {"experts": case.experts, **case.parallel},
        }
    )


class Rows(torch.nn.Module):
    """Stands for the tables: every row of the batch has an embedding of its own."""

    output_dim = D - F

    def __init__(self, rows, dtype):
        super().__init__()
        self.rows_ND = torch.nn.Parameter(torch.randn(rows, D - F, dtype=dtype))

    def forward(self, values, lengths):
        return Lookups(self.rows_ND[values])

    def step(self):
        pass


def make_state(case, config, rows, over_ranks):
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    network = build_network(config.model, D, TASKS, config.parallel if over_ranks else None)
    relate_tasks(network, config.model, config.tasks)
    network = network.to(dtype)
    torch.manual_seed(1)
    ranker = Ranker(Rows(rows, dtype), network, F).train()
    optimizer = build_optimizer(network, config.training.optimizer)
    for group in optimizer.param_groups:
        # With the usual 1e-8 Adam makes a whole step of a gradient that is nothing but rounding
        group["eps"] = 1e-3
    average = build_average(network, config.training.ema_decay)
    return TrainingState(ranker, optimizer, average, Position())


def make_batch(case, step, first, rows):
    """Rows of a step: those from `first` on, all different."""
    chance = torch.Generator().manual_seed(step)
    count, dtype = sum(map(sum, case.rows)), getattr(torch, case.dtype)
    dense_NF = torch.randn(count, F, generator=chance, dtype=dtype)
    labels_NT = torch.randint(0, 2, (count, len(TASKS)), generator=chance).float()
    observed_NT = torch.rand(count, len(TASKS), generator=chance) < 0.7
    # Sums of these are exact in float32, in which one process adds them up
    weights_NT = torch.randint(1, 9, (count, len(TASKS)), generator=chance) / 4
    mine = slice(first, first + rows)
    return Batch(
        dense_BF=dense_NF[mine].clone(),
        values=torch.arange(first, first + rows),
        lengths_CB=torch.ones(rows, dtype=torch.int32),
        labels_BT=labels_NT[mine],
        observed_BT=observed_NT[mine],
        weights_BT=weights_NT[mine],
        num_rows=rows,
    )


def make_batches(case, step, rank):
    """The step's batches: this rank's rows of them, or all (None)."""
    batches, first = [], 0
    for rows in case.rows:
        before = 0 if rank is None else sum(rows[:rank])
        batches.append(
            make_batch(case, step, first + before, sum(rows) if rank is None else rows[rank])
        )
        first += sum(rows)
    return batches


def train(case, config, rank, ranks=None):
    """Some steps; the state, the losses of each step, and the inputs' gradients of the last."""
    rows = sum(map(sum, case.rows))
    state = make_state(case, config, rows, over_ranks=rank is not None)
    ranks = ONE_PROCESS if rank is None else StepRanks.of(state.ranker.network, PATIENCE)
    found = []
    for step in range(STEPS):
        state.ranker.tables.rows_ND.grad = None
        found.append(train_step(state, make_batches(case, step, rank), config, 100, ranks))
    return state, found, state.ranker.tables.rows_ND.grad


def error(ours, theirs):
    """The length of the difference over that of the vector, or over 0.001 where it is shorter."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    if not theirs.numel():
        return 0.0
    return float((ours.double() - theirs).norm() / theirs.double().norm().clamp(min=1e-3))


def of_single(described, theirs):
    """This rank's pieces beside the same ones of one process."""
    for name, value in described.items():
        for shard in value if isinstance(value, list) else [Shard(value, value.shape, ())]:
            assert tuple(theirs[name].shape) == tuple(shard.shape), name
            first = shard.offsets[0] if shard.offsets else None
            whole = theirs[name]
            same = whole if first is None else whole[first : first + len(shard.tensor)]
            yield name, shard.tensor, same.double()


def worst(network, tensors, theirs):
    pairs = of_single(expert_shards(network, tensors), theirs)
    return max((error(ours, same) for _, ours, same in pairs), default=0.0)


def held(network, world_size):
    """Whether the pieces of all ranks are the whole network."""
    described = expert_shards(network, network.state_dict())
    pieces = [shard for value in described.values() if isinstance(value, list) for shard in value]
    sizes = torch.tensor([sum(shard.tensor.numel() for shard in pieces)])
    dist.all_reduce(sizes)
    for group, _ in parameters_by_replicas(network)[:1]:
        sizes //= 1 if group is None else dist.get_world_size(group)
    shapes = {name: v[0].shape for name, v in described.items() if isinstance(v, list) and v}
    of_all: list[dict] = [{}] * world_size  # a rank may hold no expert of a kind
    dist.all_gather_object(of_all, shapes)
    whole = {name: shape for shapes in of_all for name, shape in shapes.items()}
    return int(sizes) == sum(torch.Size(shape).numel() for shape in whole.values())


def alike(network):
    """Whether what several ranks have is the same on all of them, to the bit."""
    same = True
    groups = [(None, replicated_parameters(network))]
    groups += [(g, own) for g, own in parameters_by_replicas(network) if g is not None]
    for group, weights in groups:
        for dtype in {weight.dtype: None for weight in weights}:
            flat = [weight.detach().flatten() for weight in weights if weight.dtype == dtype]
            # The largest of each number, and of its negative: of all ranks in one exchange
            found_2N = torch.stack([torch.cat(flat), -torch.cat(flat)])
            dist.all_reduce(found_2N, dist.ReduceOp.MAX, group)
            same &= torch.equal(found_2N[0], -found_2N[1])
    return same


def repeated(again, weights, found, grads):
    """Whether training a second time gave the same bits."""
    state, found_again, grads_again = again
    found_weights = list(state.ranker.network.state_dict().values())
    same = grads is None or torch.equal(grads, grads_again)
    return same and found == found_again and all(map(torch.equal, weights, found_weights))


def outputs(case, state, rank):
    state.ranker.eval()
    batches = make_batches(case, STEPS, rank)
    with torch.no_grad():
        return torch.cat([state.ranker(b).logits_BT for b in batches])


def cut(cases, world_size):
    """The cases with the rows of so many ranks."""
    rows = {name: tuple(rows[:world_size] for rows in case.rows) for name, case in cases.items()}
    return {name: replace(case, rows=rows[name]) for name, case in cases.items()}


@contextmanager
def chance(case):
    """No noise where the case says so: ranks and one process would draw it for other rows."""
    with ExitStack() as stack:
        if case.no_chance:
            stack.enter_context(patch("torch.randn_like", torch.zeros_like))
            stack.enter_context(patch("torch.rand_like", lambda x: torch.full_like(x, 0.6)))
        yield


class Alone(NamedTuple):
    """What one process finds on the rows of all."""

    steps: list
    grads_ND: torch.Tensor | None
    outputs_NT: torch.Tensor
    weights: dict[str, Any]
    average: dict[str, Any]
    moments: dict[str, Any]


def alone(case):
    config = make_config(case)
    with chance(case):
        state, steps, grads = train(case, config, None)
        network, average = state.ranker.network, state.average.module
        return Alone(
            steps,
            grads,
            outputs(case, state, None),
            network.state_dict(),
            average.state_dict(),
            flatten_optimizer(state.optimizer, network),
        )


def run(case, rank, world_size, single):
    config = make_config(case)
    with chance(case):
        state, found, grads = train(case, config, rank)
        weights = [weight.clone() for weight in state.ranker.network.state_dict().values()]
        repeats = not case.twice or repeated(train(case, config, rank), weights, found, grads)
        mine = torch.cat([b.values for b in make_batches(case, STEPS, rank)])
        ours = outputs(case, state, rank)
    network = state.ranker.network
    moments = flatten_optimizer(state.optimizer, network)
    return {
        "losses": max(
            error(torch.tensor(a.losses + a.rows), torch.tensor(b.losses + b.rows))
            for a, b in zip(found, single.steps, strict=True)
        ),
        "inputs": 0.0 if grads is None else error(grads[mine], single.grads_ND[mine]),
        "outputs": error(ours, single.outputs_NT[mine]),
        "weights": worst(network, network.state_dict(), single.weights),
        "average": worst(network, state.average.module.state_dict(), single.average),
        "moments": worst(network, moments, single.moments),
        "repeats": repeats,
        "alike": alike(network),
        "held": held(network, world_size),
        "spread": any(
            isinstance(v, list) for v in expert_shards(network, network.state_dict()).values()
        ),
    }


def diverges(rank, world_size, spoil):
    """What every rank says where one of them gets a loss that is no number."""
    rows = (4,) * (world_size - 1) + (0,) if spoil is spoil_weights else (4,) * world_size
    case = Case(TOP_2, "spread", rows=(rows,))
    config = make_config(case)
    state = make_state(case, config, sum(rows), over_ranks=True)
    ranks = StepRanks.of(state.ranker.network, PATIENCE)
    (batch,) = make_batches(case, 0, rank)
    before = state.ranker.tables.rows_ND.detach().clone()
    if rank == 0 or spoil is spoil_weights:
        spoil(state.ranker, batch)
        before = state.ranker.tables.rows_ND.detach().clone()
    try:
        train_step(state, [batch], config, 100, ranks)
    except ValueError as raised:
        assert torch.equal(before.nan_to_num(7), state.ranker.tables.rows_ND.nan_to_num(7))
        return str(raised)
    return "nothing"


def spoil_label(ranker, batch):
    batch.labels_BT[0, 0], batch.observed_BT[0, 0] = torch.nan, True


def spoil_embedding(ranker, batch):
    ranker.tables.rows_ND.data[batch.values[0], 0] = torch.inf


def spoil_weights(ranker, batch):
    """On every rank, as one bad step leaves them; the last rank has no rows."""
    ranker.network.levels[0].mixture.gate.logits.weights[0].data[0, 0, 0] = torch.nan


SPOILED = (spoil_label, spoil_embedding, spoil_weights)


def main(rank, world_size, _):
    cases = cut(CASES, world_size)
    with one_group():
        singles = shared_out(cases, alone)
        found = {name: run(case, rank, world_size, singles[name]) for name, case in cases.items()}
        said = [diverges(rank, world_size, spoil) for spoil in SPOILED]
    return {"cases": found, "diverged": said}
