"""What a sparse layer spends beside its experts: gates, plan, gather, combine."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.racing.harness import Race, Result, Spread, Target
from benchmarks.racing.layers import Workload, draw, leaf, our_experts
from benchmarks.sparse.quality import Bench
from mmoe.mixture import MultiGateMixture, Selection, TopKGate
from mmoe.mixture.dispatcher import plan_routes
from mmoe.ops import gated_combine, permute

WORK = Workload(B=4096, D=202, hidden=(256, 128), E=64, G=4, k=8)


def router(bench: Bench) -> list[Result]:
    torch.manual_seed(0)
    values = draw(WORK)
    pool = our_experts(WORK, values)
    choice = Selection(shared_k=WORK.k or 0, private_k=0)
    gate = TopKGate(WORK.D, WORK.G, WORK.E, k=WORK.k or 0, selection=choice)
    layer = MultiGateMixture(WORK.D, WORK.G, pool, gate=gate).train()
    x_BD = leaf(values.x_BD)
    inputs, seen_GE = [x_BD] * WORK.G, torch.ones(WORK.G, WORK.E, dtype=torch.bool)

    with torch.no_grad():
        decision = gate(inputs, seen_GE)
        assert decision.experts is not None
        routes = plan_routes(decision.experts, WORK.E)
        rows_PD = permute(values.x_BD, routes)
        with torch.autocast("cpu", torch.bfloat16):
            y_PO = pool.grouped(rows_PD, routes.offsets_E1)
    read_PD, weights_BGK = leaf(rows_PD), decision.weights
    experts = decision.experts
    parts = {
        "gates": lambda: gate(inputs, seen_GE).weights,
        "plan": lambda: plan_routes(experts, WORK.E).rows_P,
        "gather": lambda: permute(values.x_BD, routes),
        "combine": lambda: gated_combine(y_PO, routes.slots_BGK, weights_BGK),
    }
    steps = {
        "layer": (lambda: layer(x_BD).out_BGO, values.grad_BGO),
        "experts": (lambda: pool.grouped(read_PD, routes.offsets_E1), torch.randn_like(y_PO)),
    }
    calls = {name: partial(_forward, call) for name, call in parts.items()}
    calls |= {name: partial(_step, *step) for name, step in steps.items()}
    times = bench.clock.race("router", calls)
    pairs = zip(times.seconds["experts"], times.seconds["layer"], strict=True)
    note = ", ".join(f"{name} {times.ms(name):.1f}" for name in parts)
    return [
        Result(
            "router_share",
            Spread.of([1 - own / whole for own, whole in pairs]),
            times.ms("layer"),
            times.ms("experts"),
            f"1 − experts (other) over layer (ours), a step; ms forward: {note}",
        )
    ]


def _forward(call: Callable[[], Tensor]) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        call()


def _step(call: Callable[[], Tensor], grad: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        y = call()
    y.backward(grad.to(y.dtype))


RACES: tuple[Race[Bench], ...] = (Race({"router_share": Target(0.25, at_most=True)}, router),)
