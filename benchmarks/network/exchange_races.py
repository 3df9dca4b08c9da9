"""Races of how rows travel: over two levels, and in chunks."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchmarks.network.bandwidth import check_bandwidth
from benchmarks.network.grid import Setting
from benchmarks.network.world import World, network_world
from benchmarks.parallel.traffic import sums_of
from benchmarks.racing.races import NothingToMeasure, Race
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Spread, Times
from benchmarks.train.bench import Bench

# Seconds beside those of a race: checks and warm-up
MARGIN = 240.0
# Independent gates, of whose picks every rank and every host gets some
LAYER = Setting(
    hosts=2,
    per_host=2,
    batch=1024,
    experts=64,
    k=2,
    gates=4,
    widths=(256, 256),
    gbits=1.0,
)
WHOLE = (256, 512, 256)  # widths of the whole layer
# Rows out and sums back, over flat: 2p / (p + 1) of hosts of p ranks
WORLDS = {2: 4 / 3, 4: 8 / 5}
CORRELATED = 0.8

# Communication within 10 % of computation, and how often the link is set before that is given up
ALIKE, TRIES = 0.1, 8
SLOWEST, FASTEST = 0.05, 20.0  # Gbit/s
PIPELINED = replace(LAYER, per_host=1, batch=2048, widths=(256, 256, 256))
CHUNKS = (2, 3, 4, 8)


def host_bytes(bench: Bench) -> list[Result]:
    """Bytes between hosts over the fewest that there can be; the key is the worst case's."""
    found = []
    for per_host in WORLDS:
        with network_world(2, per_host, LAYER.gbits) as world:
            for gates, shared in ((1, 0.0), (4, 0.0), (4, CORRELATED)):
                setting = replace(LAYER, per_host=per_host, gates=gates)
                layer = {"setting": asdict(setting), "shared": shared}
                answers = world.ranks.ask_all("host_bytes", layer=layer)
                total = sums_of("bytes_between_hosts", answers)
                case = f"{setting.name}{', correlated' if shared else ''}"
                found.append(
                    {"case": case, "over_bound": total["counted"] / total["bound"], **total}
                )
    worst = max(found, key=lambda row: row["over_bound"])
    spread = Spread.of([row["over_bound"] for row in found])
    spread = replace(spread, median=worst["over_bound"])
    note = f"worst: {worst['case']}"
    return [
        Result(
            key="hierarchical_bytes_over_bound", spread=spread, note=note, details=found, digits=4
        )
    ]


def two_levels(bench: Bench, *, per_host: int) -> list[Result]:
    """Flat over two levels: where experts cost nothing, and beside it the whole layer."""
    key = f"hierarchical_gain_2x{per_host}"
    setting = replace(LAYER, per_host=per_host)
    hows = {"flat": {}, "two levels": {"hierarchical": True}}
    results = []
    with network_world(2, per_host, LAYER.gbits) as world:
        got = shape_links(bench, world, setting.gbits)
        for name, widths, free in ((key, LAYER.widths, True), (f"{key}_layer", WHOLE, False)):
            layer = {"setting": asdict(replace(setting, widths=widths)), "free": free}
            times = raced(world, layer, hows, bench.seconds / 2)
            note = "experts cost nothing" if free else f"experts {'-'.join(map(str, WHOLE))}"
            note += f", bound {WORLDS[per_host]:.2f}, {got}" if free else ""
            results.append(speedup(name, times, "flat", "two levels", note=note))
    return results


def pipelined(bench: Bench) -> list[Result]:
    """In chunks, over one after another and over own rows meanwhile, at a link of equal weight."""
    with network_world(2, 1, PIPELINED.gbits) as world:
        gbits, share = balanced(bench, world)
        got = shape_links(bench, world, gbits)
        hows: dict[str, Mapping[str, Any]] = {
            "one after another": {"overlaps": False},
            "own rows": {"overlaps": True},
        }
        hows |= {f"{n} chunks": {"chunks": n, "overlaps": False} for n in CHUNKS}
        hows |= {f"{n} chunks, own rows": {"chunks": n, "overlaps": True} for n in CHUNKS}
        layer = {"setting": asdict(replace(PIPELINED, gbits=gbits))}
        times = raced(world, layer, hows, bench.seconds)
    best = times.fastest(list(hows)[2:])
    details = [{"how": name, "ms": times.median(name) * 1e3} for name in hows]
    note = f"{best}; communication over computation {share:.2f}; {got}"
    return [
        replace(speedup("pipelined_gain", times, "one after another", best, note), details=details),
        speedup("pipelined_over_own_rows", times, "own rows", best, best),
    ]


def balanced(bench: Bench, world: World) -> tuple[float, float]:
    """Finds the rate at which a layer whose experts cost nothing takes half as long as it does.

    Returns:
        Gbit/s, and communication over computation there.

    Raises:
        NothingToMeasure: There is none.
    """
    gbits = PIPELINED.gbits
    strict = {"strict": {"overlaps": False}}
    for _ in range(TRIES):
        world.network.shape(gbits)
        whole, free = (
            raced(world, {"setting": asdict(PIPELINED), "free": free}, strict, 2.0).median("strict")
            for free in (False, True)
        )
        share = free / max(whole - free, 1e-9)
        bench.say(f"  {gbits:.2f} Gbit/s: communication over computation {share:.2f}")
        if abs(share - 1) <= ALIKE:
            return gbits, share
        gbits = min(max(gbits * share, SLOWEST), FASTEST)
    raise NothingToMeasure(
        f"communication stayed {share:.2f} of computation between {SLOWEST} and {FASTEST} Gbit/s"
    )


def raced(
    world: World,
    layer: Mapping[str, Any],
    hows: Mapping[str, Mapping[str, Any]],
    seconds: float,
) -> Times:
    """A race of modes; the ranks agree on the times."""
    answer = world.ranks.ask(
        "modes", within=seconds + MARGIN, layer=layer, hows=hows, seconds=seconds
    )
    return Times(answer["seconds"])


def shape_links(bench: Bench, world: World, gbits: float) -> str:
    """Sets the links, and says what they carry, who shares a core, and what the kernel lacks."""
    carries = check_bandwidth(world, gbits)
    got = (
        f"{carries['one_way']:.2g} one way, {carries['both_ways']:.2g} both, of {gbits:.3g} Gbit/s"
    )
    shared = ", ranks share cores" if world.shares_cores else ""
    bench.say(f"  {world.name}: links carry {got}{shared}")
    for note in world.network.notes:
        bench.say(f"  {note}")
    return got + shared


EXCHANGE_RACES: tuple[Race[Bench], ...] = (
    Race(("hierarchical_bytes_over_bound",), host_bytes),
    Race(("hierarchical_gain_2x2",), partial(two_levels, per_host=2)),
    Race(("hierarchical_gain_2x4",), partial(two_levels, per_host=4)),
    Race(("pipelined_gain", "pipelined_over_own_rows"), pipelined),
)
