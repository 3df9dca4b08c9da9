"""One rank of a world of hosts of two ranks each, whose dispatcher chooses its mode.

What it finds is its report.
"""

from dataclasses import asdict, replace

import torch

from mmoe.parallel import AdaptiveMode, AllToAllDispatcher, Hosts, Mode, measure_links
from tests.parallel import world

HOST_SIZE = 2
STEPS = 60


def chosen(case, rank, world_size, hosts, steps=STEPS, **settings):
    """Steps of a network that chooses, beside those in which rows travel."""
    rows, placement = case.rows, world.make_placement(case, world_size)
    x, factors = world.make_batch(case, sum(rows))
    mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    x, factors = [source[mine] for source in x], factors[mine]
    network = world.Network(
        case, lambda: AllToAllDispatcher(placement, hosts=hosts), placement.on(rank)
    )
    dispatcher = network.levels[0].dispatcher

    def step():
        out, grads = world.step(network, x, factors, True)
        found = [out, *grads, *world.of_experts(network), *world.of_gates(network)]
        return [tensor.clone() for tensor in found if tensor is not None]  # no experts

    wanted = step()
    with torch.no_grad():
        scores = network(x)
    adaptive = AdaptiveMode(**settings)
    dispatcher.mode = adaptive
    errors, modes = [], []
    for _ in range(steps):
        errors.append(world.worst(step(), wanted))
        modes.append(repr(dispatcher.mode))
    with torch.no_grad():
        same_scores = torch.equal(network(x), scores)
    return {
        "error": max(errors),
        "modes": modes,
        "history": [(c.step, repr(c.mode), c.why) for c in adaptive.history],
        "same_scores": same_scores,
        "stays": adaptive.mode == adaptive.history[-1].mode,
    }


def main(rank, world_size, _):
    hosts = Hosts.of_group(host_size=HOST_SIZE)
    rates = measure_links(hosts)
    every = {"within": 1e9, "most": 20, "repeats": 1, "first": (0, 40), "rates": rates}
    top_2 = world.CASES["top-2"]
    # All of them once, and the best of them then
    shorter = {**every, "first": (0, 25), "steps": 32}
    found = {
        "rates": asdict(rates),
        "every mode": chosen(top_2, rank, world_size, hosts, **every),
        "a rank without rows": chosen(
            replace(top_2, rows=(5, 0, 3, 9)), rank, world_size, hosts, **shorter
        ),
        "by itself": chosen(top_2, rank, world_size, hosts, first=(0, 30), every=50),
        "no room for copies": chosen(top_2, rank, world_size, hosts, **shorter, copied_bytes=1),
        "E < W": chosen(world.CASES["E < W"], rank, world_size, hosts, **shorter),
    }
    forced = AllToAllDispatcher(world.make_placement(top_2, world_size), mode="auto")
    found["auto"] = forced.adaptive is not None
    forced.mode = Mode(chunks=2)
    found["fixed"] = forced.adaptive is None
    return found
