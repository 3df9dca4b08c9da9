"""What is sent for a layer: the cases, and how a rank counts the bytes of one."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.mixture.layers import GivenLogits, leaf, linear_gate
from benchmarks.mixture.workloads import Workload
from benchmarks.parallel.bound import count_link
from benchmarks.parallel.layers import SpreadWork, wire_dtype
from benchmarks.parallel.traffic import Traffic
from mmoe.mixture import MultiGateMixture
from mmoe.parallel import AllToAllDispatcher, rank, world_size

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
