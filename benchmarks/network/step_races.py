"""A whole training step on hosts: today's exchange beside the chosen one."""

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.network.namespaces import host_network
from benchmarks.network.world import seats
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result, speedup
from benchmarks.train.bench import Bench, window
from benchmarks.train.processes import Contestant
from benchmarks.train.spec import Spec

HOSTS, PER_HOST, GBITS = 2, 2, 1.0
# 256 experts over sharded tables; loads are evened out, or what is raced is how far they are not
MODEL = (
    "model.num_experts=256",
    "model.expert.hidden=[1024, 512]",
    "model.gate.kind=top_k",
    "model.gate.k=2",
    "model.gate.balance_loss=1.0",
    "parallel.experts=spread",
)
EXCHANGES = {"rows": "parallel.exchange=rows", "auto": "parallel.exchange=auto"}
# The choices at calls 0, 10 and 50 are over by then, so that none of their trials is raced
SETTLED = 90


def step(bench: Bench, workload: str = "big") -> list[Result]:
    """Seconds of a step of tables, experts, gates and towers, over 2 × 2 ranks."""
    specs = {name: _spec(bench, workload, exchange) for name, exchange in EXCHANGES.items()}

    def settle(running: Mapping[str, Contestant]) -> None:
        for contestant in running.values():
            window(contestant, SETTLED)

    with host_network(HOSTS) as network:
        network.shape(GBITS)
        times = bench.race(specs, seats=seats(network, PER_HOST), before=settle)
    note = f"256 experts 1024-512, {HOSTS} × {PER_HOST} ranks, {GBITS:g} Gbit/s"
    return [speedup("step_gain", times, "rows", "auto", note=note)]


def _spec(bench: Bench, workload: str, exchange: str) -> Spec:
    one = bench.spec("mmoe", workload, "fp32")
    overrides = (*MODEL, exchange, *one.overrides)
    return replace(one, threads=1, ranks=HOSTS * PER_HOST, overrides=overrides)


STEP_RACES: tuple[Race[Bench], ...] = (Race(("step_gain",), step),)
