"""One rank of a gloo world that trains a converted network; run by test_distribute.py.

Each case is trained twice: spread over the ranks, with DDP, FSDP2 or sums for the rest, and in one
process on the rows of all. Its report is the largest differences.
"""

import copy
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mmoe.integrations.convert import auxiliary_losses, convert, distribute
from mmoe.mixture import MultiGateMixture
from mmoe.parallel import replicated_parameters, spread_parameters

D, ROWS, STEPS = 8, 4, 3


@dataclass(frozen=True)
class Case:
    rest: str = "ddp"
    num_experts: int = 5
    activation: str = "gelu"
    replicas: bool = False  # two groups of ranks hold the same experts
    blocks: bool = False  # each layer is sharded by itself, and then the rest


CASES = {
    "DDP": Case(),
    "DDP, fewer experts than ranks": Case(num_experts=2),
    "DDP, a pool of modules": Case(activation="tanh"),
    "FSDP2": Case("fsdp"),
    "FSDP2, each layer": Case("fsdp", blocks=True),
    "sums": Case("sum"),
    "DDP, replicas": Case(replicas=True),
    "FSDP2, replicas": Case("fsdp", replicas=True),
}


def make_network(case):
    torch.manual_seed(0)
    activation = torch.tanh if case.activation == "tanh" else case.activation
    layer = nn.TransformerEncoderLayer(D, 2, 16, 0.0, activation, batch_first=True)
    dense = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    gate = {"kind": "top_k", "balance_loss": 0.1, "z_loss": 0.1}
    return convert(dense, case.num_experts, gate=gate, init="fresh")


def make_batches(ranks):
    torch.manual_seed(1)
    return torch.randn(STEPS, 2, ranks * ROWS, 3, D, dtype=torch.float64)


def train(model, batches, scale=1.0, after_backward=None):
    """Several steps, each on one of the batches; the loss is a mean over their rows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for x, target in batches:
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean() * scale
        losses = auxiliary_losses(model)
        assert len(losses) == 4
        (loss + sum(losses.values())).backward()
        if after_backward is not None:
            after_backward()
        optimizer.step()
    return float(loss.detach())


def spread(case, model, rank, ranks):
    """The model over the ranks, and what is called after `backward`."""
    mesh = init_device_mesh("cpu", (ranks,))
    if case.replicas:
        both = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "experts"))
        model = distribute(model, both["experts"], replicas=both["replicas"])
    else:
        gradients = "sum" if case.rest == "sum" else "mean"
        model = distribute(model, mesh, gradients=gradients)
    own = set(spread_parameters(model))
    if case.rest == "ddp":
        return DistributedDataParallel(model), None
    if case.rest == "fsdp":
        for layer in model.layers if case.blocks else ():
            fully_shard(layer, mesh=mesh, ignored_params=own)
        return fully_shard(model, mesh=mesh, ignored_params=own), None

    def add_up():
        for weight in replicated_parameters(model):
            dist.all_reduce(weight.grad)

    return model, add_up


def compare(model, alone):
    """The largest differences: of experts here, and of what every rank has."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    worst = {"experts": 0.0, "others": 0.0}
    expected = dict(alone.named_parameters())
    mixtures = {n: m for n, m in inner.named_modules() if isinstance(m, MultiGateMixture)}
    for name, mixture in mixtures.items():
        dispatcher = mixture.dispatcher
        part = alone.get_submodule(name).experts.part(dispatcher.placement.on(dispatcher.wire.rank))
        pairs = zip(mixture.experts.parameters(), part.parameters(), strict=True)
        for mine, its in pairs if len(part) else ():
            worst["experts"] = max(worst["experts"], float((mine - its).abs().max().detach()))
    for name, weight in inner.named_parameters():
        if ".experts." in name:
            continue
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        worst["others"] = max(worst["others"], float((whole - expected[name]).abs().max().detach()))
    return worst


def run(case, rank, ranks):
    alone = make_network(case)
    model = copy.deepcopy(alone)
    start = copy.deepcopy(alone)
    if rank:  # they get what the first rank has
        for weight in model.parameters():
            nn.init.zeros_(weight)
    batches = make_batches(ranks)
    train(alone, batches)
    model, after = spread(case, model, rank, ranks)
    mine = batches[:, :, rank * ROWS : (rank + 1) * ROWS]
    train(model, mine, 1 / ranks if case.rest == "sum" else 1.0, after)
    found = compare(model, alone)
    moved = [
        (a - b).abs().max() for a, b in zip(alone.parameters(), start.parameters(), strict=True)
    ]
    found["moved"] = float(torch.stack(moved).min().detach())
    model.eval()
    with torch.no_grad():
        difference = model(mine[0][0]) - alone.eval()(mine[0][0])
    return found | {"scores": float(difference.abs().max())}


def main(rank, ranks, _):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's of FSDP2 on CPUs
        return {name: run(case, rank, ranks) for name, case in CASES.items()}
