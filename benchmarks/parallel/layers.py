"""The layer over ranks, the bytes that it sends, and the fewest that it could."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.mixture.layers import (
    Contestant,
    GivenLogits,
    Values,
    Workload,
    contestant,
    correlated_logits,
    draw,
    leaf,
    linear_gate,
    our_experts,
)
from mmoe.mixture import MLPExperts, MultiGateMixture
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, rank, world_size

# The fewest bytes that a layer with experts on other ranks can send, told from the picks alone

PICK_BYTES = 4  # which gate and which expert
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class LinkCounts:
    """What one rank wants of another.

    Attributes:
        rows: Distinct samples with a pick there.
        picks: Of all gates.
        pairs: Distinct (sample, expert there).
        sums: Distinct (sample, gate).
    """

    rows: int
    picks: int
    pairs: int
    sums: int

    def bytes(self, row_bytes: int, output_bytes: int) -> int:
        """Of forward and backward pass together, both directions.

        Forward: each row once, with its picks; back comes the smaller of a row for each pair and a
        sum for each gate, for which the weights have to go out as well. Backward: the gradients of
        all of these but the picks.

        Args:
            row_bytes: Of what an expert reads.
            output_bytes: Of what it returns.
        """
        back = min(self.pairs * output_bytes, self.sums * output_bytes + self.picks * WEIGHT_BYTES)
        return 2 * (self.rows * row_bytes + back) + self.picks * PICK_BYTES


def count_link(picks_BGK: Tensor, first: int, last: int) -> LinkCounts:
    """What the samples of one rank want of the rank that holds experts `first` to `last` − 1."""
    there_BGK = (picks_BGK >= first) & (picks_BGK < last)
    chosen_BE = torch.zeros(len(picks_BGK), last - first + 1, dtype=torch.bool)
    places_BX = torch.where(there_BGK, picks_BGK - first, last - first).flatten(1).long()
    chosen_BE.scatter_(1, places_BX, True)
    return LinkCounts(
        rows=int(there_BGK.flatten(1).any(1).sum()),
        picks=int(there_BGK.sum()),
        pairs=int(chosen_BE[:, :-1].sum()),
        sums=int(there_BGK.any(2).sum()),
    )


# Bytes that the collectives of a rank send, counted below all of ours, beside the told ones


class Traffic(TorchDispatchMode):
    """Counts what all-to-alls of any group send to other hosts, in forward and backward passes.

    It looks at the operators that `torch.distributed` itself calls, so it knows nothing of who
    calls them, and misses nothing that somebody sends in another way.

    Args:
        per_host: Ranks of each host; 1: what goes to any other rank counts.

    Attributes:
        bytes: Sent so far.
    """

    def __init__(self, per_host: int = 1) -> None:
        super().__init__()
        self.per_host, self.bytes = per_host, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.bytes += _sent(func._schema.name, args, self.per_host)
        return func(*args, **(kwargs or {}))


def _sent(name: str, args: Any, per_host: int) -> int:
    """Bytes for other hosts.

    Raises:
        ValueError: A collective of which it is not clear what it sends.
    """
    if name != "c10d::alltoall_base_":
        raise ValueError(f"expected all-to-alls alone, whose bytes can be counted, got {name}")
    message, sizes = args[1], args[4]
    assert isinstance(message, Tensor)
    members = dist.get_process_group_ranks(dist.ProcessGroup.unbox(args[2]))
    rows = sizes or [len(message) // len(members)] * len(members)
    here = dist.get_rank() // per_host
    away = sum(n for n, member in zip(rows, members, strict=True) if member // per_host != here)
    return away * message[:1].numel() * message.element_size()


def sums_of(told: str, answers: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Bytes over all ranks: as told, as counted, and the fewest that there can be.

    Args:
        told: The counter that tells them.
        answers: `told`, `counted` and `bound` of each rank.

    Raises:
        ValueError: It does not tell what was sent.
    """
    total = {key: sum(answer[key] for answer in answers) for key in ("told", "counted", "bound")}
    if total["told"] != total["counted"]:
        raise ValueError(
            f"{told}: expected the {total['counted']:,} bytes that were sent, got {total['told']:,}"
        )
    return total


# Layers whose experts are spread over ranks, as contestants


@dataclass(frozen=True)
class SpreadWork:
    """A layer whose experts are spread evenly over ranks, and the rows that each of them brings.

    Attributes:
        work: Its sizes, B for each rank.
        ranks: W.
        rank: This one.
        shared: Of the logits of gates, see `correlated_logits`.
    """

    work: Workload
    ranks: int
    rank: int
    shared: float = 0.0

    @property
    def placement(self) -> ExpertPlacement:
        """Who holds which expert."""
        return ExpertPlacement.even(self.work.E, self.ranks)

    def values(self) -> Values:
        """This rank's rows of those that are drawn for all ranks; the experts are everybody's."""
        whole = draw(replace(self.work, B=self.work.B * self.ranks))
        return replace(whole, x_BD=self.mine(whole.x_BD), grad_BGO=self.mine(whole.grad_BGO))

    def all_logits(self) -> Tensor:
        """Of the rows of all ranks."""
        return correlated_logits(replace(self.work, B=self.work.B * self.ranks), self.shared)

    def mine(self, rows: Tensor) -> Tensor:
        """The rows of this rank."""
        return rows[self.rank * self.work.B : (self.rank + 1) * self.work.B]

    def experts(self, values: Values) -> MLPExperts:
        """Those that are held here."""
        part = our_experts(self.work, values).part(self.placement.on(self.rank))
        assert isinstance(part, MLPExperts), "there are at least as many experts as ranks"
        return part

    def layer(self, gate: nn.Module, experts: MLPExperts, **settings: Any) -> MultiGateMixture:
        """A layer over the experts here and those of the other ranks."""
        dispatcher = AllToAllDispatcher(self.placement, **settings)
        gates = self.work.G if not isinstance(gate, GivenLogits) else gate.logits_BGE.shape[1]
        return MultiGateMixture(
            self.work.D, gates, experts, gate=gate, dispatcher=dispatcher
        ).train()

    def all_gates_at_once(self) -> Contestant:
        """One dispatch for all gates."""
        values = self.values()
        return self._contestant([self.mine(self.all_logits())], values)

    def one_dispatch_per_gate(self) -> Contestant:
        """As many dispatches as gates, each of a layer with one gate, over the same experts."""
        values = self.values()
        return self._contestant(self.mine(self.all_logits()).split(1, dim=1), values)

    def _contestant(self, logits: Sequence[Tensor], values: Values) -> Contestant:
        assert self.work.k is not None
        experts = self.experts(values)
        layers = [self.layer(GivenLogits(given, self.work.k), experts) for given in logits]
        grads = values.grad_BGO.split([given.shape[1] for given in logits], dim=1)
        x_BD = leaf(values.x_BD)
        return contestant(lambda: [layer(x_BD).out_BGO for layer in layers], grads, x_BD, layers)


def wire_dtype(name: str) -> torch.dtype:
    """fp32 or bf16."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[name]


# What is sent for a layer: the cases, and how a rank counts the bytes of one

ROWS = 1024  # of each rank
DENSE = {"E": 8, "D": 330, "hidden": (128,)}  # of `big`; hidden layers send nothing
TOP_2 = {"E": 64, "D": 256, "hidden": (256,), "k": 2}


@dataclass(frozen=True, kw_only=True)
class WireCase:
    """A layer, and what its rows travel in.

    Attributes:
        name: In the table.
        sizes: Of a `Workload`.
        shared: Of the gates' logits.
        wire: fp32 or bf16.
    """

    name: str
    sizes: dict[str, Any]
    shared: float = 0.0
    wire: str = "fp32"


def wire_cases(rows: int = ROWS) -> list[WireCase]:
    """Dense gates, and top-2 gates that are alike or not, on both wires."""
    cases = []
    for wire in ("fp32", "bf16"):
        for gates in (2, 8):
            sizes = {**DENSE, "G": gates, "B": rows}
            cases.append(WireCase(name=f"{gates} gates, all of 8", sizes=sizes, wire=wire))
        for gates, shared in ((1, 0.0), (4, 0.0), (4, 0.8), (8, 0.0), (8, 0.8)):
            alike = ", correlated" if shared else ""
            sizes = {**TOP_2, "G": gates, "B": rows}
            name = f"{gates} gate{'s' * (gates > 1)}, top-2 of 64{alike}"
            cases.append(WireCase(name=name, sizes=sizes, shared=shared, wire=wire))
    return cases


def count_bytes(*, name: str, sizes: dict[str, Any], shared: float, wire: str) -> dict[str, Any]:
    """Forward and backward pass of one batch: bytes counted twice, and the fewest there can be."""
    work = Workload(**{**sizes, "hidden": tuple(sizes["hidden"])})
    spread = SpreadWork(work, world_size(), rank(), shared)
    values = spread.values()
    logits = spread.all_logits()
    if work.k is None:
        gate: nn.Module = linear_gate(work, values)
        picks_BGK = torch.arange(work.E).expand(len(logits), work.G, -1)
    else:
        gate = GivenLogits(spread.mine(logits), work.k)
        picks_BGK = logits.topk(work.k, dim=-1).indices
    layer = spread.layer(gate, spread.experts(values), wire_dtype=wire_dtype(wire))
    told, counted = _step(layer, leaf(values.x_BD), values.grad_BGO)
    return {"told": told, "counted": counted, **_fewest(spread, picks_BGK, wire)}


def _step(layer: MultiGateMixture, x_BD: Tensor, grad_BGO: Tensor) -> tuple[int, int]:
    """What the dispatcher says that it sent, and what was sent."""
    dispatcher = layer.dispatcher
    assert isinstance(dispatcher, AllToAllDispatcher)
    layer(x_BD).out_BGO.backward(grad_BGO)  # ranks tell each other their hosts on first use
    before = dispatcher.wire.bytes_sent
    with Traffic() as traffic:
        layer(x_BD).out_BGO.backward(grad_BGO)
    return dispatcher.wire.bytes_sent - before, traffic.bytes


def _fewest(spread: SpreadWork, picks_BGK: Tensor, wire: str) -> dict[str, Any]:
    """Of this rank's links to the others; what they send back counts here, the sum is the same.

    Beside it: the same with a message for each gate, and with a row for each pick.
    """
    work, ranks = spread.work, spread.ranks
    number = wire_dtype(wire).itemsize
    widths = (work.D * number, work.output_dim * number)
    mine_BGK = spread.mine(picks_BGK)
    found = {"bound": 0, "per_gate": 0, "per_pick": 0, "links": []}
    for other in range(ranks):
        if other == spread.rank:
            continue
        held = spread.placement.on(other)
        span = (held[0], held[-1] + 1)
        link = count_link(mine_BGK, *span)
        found["links"].append(asdict(link))
        found["bound"] += link.bytes(*widths)
        by_gate = [count_link(gate_B1K, *span) for gate_B1K in mine_BGK.split(1, dim=1)]
        found["per_gate"] += sum(gate.bytes(*widths) for gate in by_gate)
        found["per_pick"] += 2 * link.picks * sum(widths)
    return found
