"""Races of uneven loads, on two ranks with a core each."""

from dataclasses import asdict

from benchmarks.network.exchange_races import MARGIN, raced, shape_links
from benchmarks.network.grid import Setting
from benchmarks.network.world import network_world
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Times
from benchmarks.train.bench import Bench

HOT = 0.9  # of the picks, on one expert
UNEVEN = 0.8  # of the picks, on the first rank: loads of 4 to 1
# Much to compute beside what travels
LAYER = Setting(
    hosts=2,
    per_host=1,
    batch=4096,
    experts=16,
    k=1,
    gates=1,
    widths=(256, 2048, 256),
    gbits=1.0,
)


def shadowed(bench: Bench) -> list[Result]:
    """Rows that travel to a hot expert, over its weights that travel to the rows."""
    hows = {"rows": {}, "shadowed": {"shadowed": [0]}}
    with network_world(LAYER.hosts, LAYER.per_host, LAYER.gbits) as world:
        got = shape_links(bench, world, LAYER.gbits)
        layer = {"setting": asdict(LAYER), "hot": HOT}
        times = raced(world, layer, hows, bench.seconds / 2)
    # The first rank has these and half of the others, instead of half of all
    bound = (HOT + (1 - HOT) / LAYER.ranks) * LAYER.ranks
    note = f"{HOT:.0%} of the picks on one of {LAYER.experts}, bound {bound:.2f}; {got}"
    return [speedup("shadow_gain", times, "rows", "shadowed", note=note)]


def placed(bench: Bench) -> list[Result]:
    """Experts that lie evenly, over experts that were placed by their loads."""
    with network_world(LAYER.hosts, LAYER.per_host, LAYER.gbits) as world:
        got = shape_links(bench, world, LAYER.gbits)
        seconds = bench.seconds / 2
        answer = world.ranks.ask(
            "placements",
            within=seconds + MARGIN,
            layer={"setting": asdict(LAYER), "uneven": UNEVEN},
            seconds=seconds,
        )
    busiest = " to ".join(f"{answer[when]:.2f}" for when in ("before", "after"))
    note = f"the busiest rank's load over the mean: {busiest}; bound 1.60; {got}"
    return [speedup("placement_gain", Times(answer["seconds"]), "even", "placed", note=note)]


LOAD_RACES: tuple[Race[Bench], ...] = (
    Race(("shadow_gain",), shadowed),
    Race(("placement_gain",), placed),
)
