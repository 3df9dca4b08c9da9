"""Races of uneven loads, on two ranks with a core each."""

from dataclasses import asdict

from benchmarks.network.exchange_races import raced, said
from benchmarks.network.grid import Setting
from benchmarks.network.world import network_world
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result, speedup
from benchmarks.train.bench import Bench

HOT = 0.9  # of the picks, on one expert
# Much to compute beside what travels
LAYER = Setting(
    hosts=2,
    per_host=1,
    batch=4096,
    experts=16,
    k=1,
    gates=1,
    widths=(256, 1024, 256),
    gbits=1.0,
)


def shadowed(bench: Bench) -> list[Result]:
    """Rows that travel to a hot expert, over its weights that travel to the rows."""
    hows = {"rows": {}, "shadowed": {"shadowed": [0]}}
    with network_world(LAYER.hosts, LAYER.per_host, LAYER.gbits) as world:
        got = said(bench, world, LAYER.gbits)
        layer = {"setting": asdict(LAYER), "hot": HOT}
        times = raced(world, layer, hows, bench.seconds / 2)
    note = f"{HOT:.0%} of the picks on one of {LAYER.experts}, bound 1.80; {got}"
    return [speedup("shadow_gain", times, "rows", "shadowed", note=note)]


LOAD_RACES: tuple[Race[Bench], ...] = (Race(("shadow_gain",), shadowed),)
