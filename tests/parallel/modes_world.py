"""One rank of a world of hosts of two ranks each, which compares every mode with one process.

The cases are those of `world.py`, in other modes; what it finds is its report.
"""

import os
import warnings
from dataclasses import asdict, replace
from functools import partial
from itertools import cycle, product
from unittest import mock

import torch

from mmoe.mixture import ExpertPool, GateOutput, MultiGateMixture
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, Hosts, Mode
from tests.parallel import world
from tests.ranks import shared_out

HOST_SIZE = 2
MODES = {
    "hierarchical": Mode(hierarchical=True),
    "2 chunks": Mode(chunks=2),
    "3 chunks": Mode(chunks=3),
    "hierarchical, 3 chunks": Mode(hierarchical=True, chunks=3),
}


def cases():
    """Cases over two levels, and in one of the modes in chunks, overlapped or not."""
    in_chunks = cycle(product(list(MODES)[1:], (False, True)))
    for name, case in world.CASES.items():
        if name.endswith(", overlapped"):
            continue
        if not name.startswith("drawn"):
            yield f"{name}, hierarchical", replace(case, mode=MODES["hierarchical"], overlap=False)
        mode, overlap = next(in_chunks)
        if not name.endswith(world.ALIKE):
            yield f"{name}, {mode}", replace(case, mode=MODES[mode], overlap=overlap)
    # Experts that must get their rows together: `dispatch` and `combine` instead of `run`
    for name in "dense of 14", "uneven rows", "sources", "dense", "mixed experts", "first two":
        case = replace(world.CASES[name], pool="batch", mode=MODES["hierarchical"])
        yield f"batch norm, {name}", case
    yield f"batch norm, {name}, sums", replace(case, way_back="sums")
    case = world.CASES["dense of 14, overlapped"]
    yield "own rows in 2 chunks", replace(case, mode=MODES["2 chunks"])
    yield "rows of the host in hierarchical", replace(case, mode=MODES["hierarchical"])


CASES = dict(cases())


def sent_between_hosts(case, layer, x, placement, rank, rows):
    """Bytes of one forward pass from this host to others, and the fewest there can be.

    Over two levels they are those of a world that has the hosts as its ranks; else those to the
    ranks of other hosts. A chunk is a batch of its own.
    """
    wire, before = layer.dispatcher.wire, layer.dispatcher.wire.bytes_between_hosts
    own = [source.split(list(rows))[rank] for source in x]
    layer(own if len(own) > 1 else own[0])
    measured = wire.bytes_between_hosts - before
    # Experts whose results depend on the batch get it whole
    chunks = 1 if case.pool == "batch" else case.mode.chunks
    expected, picks = 0, world.picks_of_all(layer, x, rows)
    for i in range(chunks):
        cut = [of[len(of) * i // chunks : len(of) * (i + 1) // chunks] for of in picks]
        expected += fewest(case, placement, cut, rank)
    return measured, expected


def fewest(case, placement, picks, rank):
    """Bytes that one chunk must send to other hosts."""
    numbers, host = world.bytes_of(case), rank // HOST_SIZE
    if case.mode.hierarchical:
        firsts = range(0, placement.num_ranks, HOST_SIZE)
        held = [sum(placement.experts[r : r + HOST_SIZE], ()) for r in firsts]
        peers = picks[rank % HOST_SIZE :: HOST_SIZE]
        return world.bound(case, ExpertPlacement(tuple(held)), peers, host, *numbers)
    away = [r for r in range(placement.num_ranks) if r // HOST_SIZE != host]
    return world.bound(case, placement, picks, rank, *numbers, away)


def switching(rank, world_size, hosts):
    """One network whose two levels change their modes from step to step, each its own way."""
    case = world.CASES["two levels"]
    rows, placement = case.rows, world.make_placement(case, world_size)
    x, factors = world.make_batch(case, sum(rows))
    mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))

    def make_dispatcher():
        return AllToAllDispatcher(placement, hosts=hosts)

    network = world.Network(case, make_dispatcher, placement.on(rank))
    found, modes = [], [Mode(), *MODES.values()]
    for i, mode in enumerate(modes):
        network.levels[0].dispatcher.mode = mode
        network.levels[1].dispatcher.mode = modes[i - 2]
        network.levels[0].dispatcher.overlap_rows = 0 if i % 2 else 10**6
        out, grads = world.step(network, [source[mine] for source in x], factors[mine], True)
        found.append([out, *grads, *world.of_experts(network), *world.of_gates(network)])
        found[-1] = [tensor.clone() for tensor in found[-1]]
    return max(world.worst(tensors, found[0]) for tensors in found)


class Scaled(torch.nn.Module):
    """An expert whose result for a row has the same bits in any batch."""

    output_dim = world.D

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x_BD):
        return torch.sin(x_BD * (self.number + 1))


class Alternating(torch.nn.Module):
    """Gates of which a row's first asks for all of a host, or all of them for one expert.

    Alone, the first kind of rows gets sums from the other host, and the second kind pairs.
    """

    num_experts = 8

    def forward(self, inputs, visibility_GE):
        x_BD, four_4 = inputs[0], torch.arange(4)
        host_B11 = 4 * (x_BD[:, 1] > 0).view(-1, 1, 1)
        wide_BGK = (host_B11 + four_4).repeat(1, world.G, 1)
        wide_BGK[:, 1:] = -1
        alike_BGK = (host_B11 + four_4).repeat(1, world.G, 1).masked_fill(four_4 > 0, -1)
        experts_BGK = torch.where((x_BD[:, 0] > 0.5).view(-1, 1, 1), wide_BGK, alike_BGK)
        weights_BGK = torch.stack(list(inputs), 1)[:, :, :4].sigmoid()
        return GateOutput(weights_BGK, experts_BGK.to(torch.int32))


def scores(rank, world_size, hosts):
    """Whether scores have the same bits in another batch, and whatever others score beside it."""
    gate = Alternating()
    placement = ExpertPlacement.even(gate.num_experts, world_size)
    pool = ExpertPool([Scaled(e) for e in placement.on(rank)])
    dispatcher = AllToAllDispatcher(placement, hosts=hosts)
    layer = MultiGateMixture(world.D, world.G, pool, gate=gate, dispatcher=dispatcher)
    x_BD = torch.randn(12, world.D, generator=torch.Generator().manual_seed(rank))
    found = []
    for dispatcher.mode in (Mode(), *MODES.values()):
        with torch.no_grad():
            whole = layer(x_BD).out_BGO
            for rows in range(1, 12):
                # Ranks with the same batches, and with others
                size = (rows + rank * 5) % 12 if rows % 2 else rows
                found.append(torch.equal(layer(x_BD[:size]).out_BGO, whole[:size]))
    return found


def traffic(rank, world_size, hosts):
    """Bytes between hosts and seconds of a forward pass, in one level and in two."""
    case = replace(world.CASES["dense"], num_experts=12, rows=(40, 40, 40, 40))
    x, _ = world.make_batch(case, 160)
    found, placement = {}, world.make_placement(case, world_size)
    for name, mode in ("flat", Mode()), ("hierarchical", MODES["hierarchical"]):
        make = partial(AllToAllDispatcher, placement, mode=mode, hosts=hosts)
        network = world.Network(case, make, placement.on(rank))
        network([x[0][:40]])
        found[name] = asdict(network.levels[0].dispatcher.wire.traffic)
    return found


def launched(rank, world_size):
    """What becomes of what a launcher says: ranks on each host, and the warning."""
    found = {}
    for name, local in {
        "even": [2] * world_size,
        "uneven": [3, 3, 3, 1],
        "does not divide": [3] * world_size,
        "nothing": [0] * world_size,
        "one": [world_size] * world_size,
    }.items():
        with (
            mock.patch.dict(os.environ, LOCAL_WORLD_SIZE=str(local[rank] or "")),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            hosts = Hosts.of_group()
        found[name] = [hosts.size, [str(warning.message) for warning in said]]
    return found


def main(rank, world_size, _):
    hosts = Hosts.of_group(host_size=HOST_SIZE)
    singles = shared_out(CASES, partial(world.alone, world_size=world_size), world.of_one)
    return {
        "cases": {
            name: world.run(case, rank, world_size, singles[name], hosts, sent_between_hosts)
            for name, case in CASES.items()
        },
        "switching": switching(rank, world_size, hosts),
        "scores": scores(rank, world_size, hosts),
        "traffic": traffic(rank, world_size, hosts),
        "launched": launched(rank, world_size),
    }
