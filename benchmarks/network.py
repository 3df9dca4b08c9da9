"""Races modes of dispatchers over several hosts, prints tables and, last, one JSON line.

Hosts are network namespaces of this machine, joined by shaped links.
"""

import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchmarks.racing.harness import (
    NothingToMeasure,
    Race,
    Result,
    Spread,
    Target,
    Times,
    print_details,
    speedup,
)
from benchmarks.racing.hosts import (
    World,
    check_bandwidth,
    host_network,
    network_world,
    seats,
    why_not,
)
from benchmarks.racing.spread import Setting, sums_of
from benchmarks.train.races import Bench, Contestant, run_program, window
from benchmarks.train.workloads import Spec

# Races of how rows travel: over two levels, and in chunks

# Seconds beside those of a race: checks and warm-up
MARGIN = 240.0
# Independent gates, of whose picks every rank and every host gets some
LAYER = Setting(
    hosts=2, per_host=2, batch=1024, experts=64, k=2, gates=4, widths=(256, 256), gbits=1.0
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
    return [Result("hierarchical_bytes_over_bound", spread, note=note, details=found, digits=4)]


def two_levels(bench: Bench, *, per_host: int) -> list[Result]:
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
    details = [{"how": name, "ms": times.ms(name)} for name in hows]
    note = f"{best}; communication over computation {share:.2f}; {got}"
    return [
        replace(speedup("pipelined_gain", times, "one after another", best, note), details=details),
        speedup("pipelined_over_own_rows", times, "own rows", best, best),
    ]


def balanced(bench: Bench, world: World) -> tuple[float, float]:
    """Finds the rate at which a layer whose experts cost nothing takes half as long as it does.

    Returns Gbit/s, and communication over computation there.
    """
    gbits, share = PIPELINED.gbits, 0.0
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


def asked_for(
    world: World, job: str, layer: Mapping[str, Any], seconds: float, **asked: Any
) -> Mapping[str, Any]:
    """The ranks' answer to a race, of whose times they agree."""
    return world.ranks.ask(job, within=seconds + MARGIN, layer=layer, seconds=seconds, **asked)


def raced(
    world: World, layer: Mapping[str, Any], hows: Mapping[str, Mapping[str, Any]], seconds: float
) -> Times:
    return Times(asked_for(world, "modes", layer, seconds, hows=hows)["seconds"])


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
    Race({"hierarchical_bytes_over_bound": Target(1.05, at_most=True)}, host_bytes),
    Race({"hierarchical_gain_2x2": Target(1.2)}, partial(two_levels, per_host=2)),
    Race({"hierarchical_gain_2x4": Target(1.3)}, partial(two_levels, per_host=4)),
    Race({"pipelined_gain": Target(1.25), "pipelined_over_own_rows": Target(1.0)}, pipelined),
)


# The mode that is chosen beside every fixed one, on a grid of settings that was fixed before there
# was a cost model

# hosts, ranks of each, batch, experts, k, gates, widths, Gbit/s, skew
_ROWS = (
    (2, 1, 256, 4, 1, 1, (64, 64), 0.1, 0.0), (2, 1, 256, 64, 2, 2, (256, 128), 0.1, 0.0),
    (2, 1, 1024, 8, 2, 4, (256, 64), 1.0, 0.0), (2, 1, 1024, 256, 2, 4, (256, 256), 1.0, 0.0),
    (2, 1, 2048, 16, 1, 1, (512, 256, 128), 3.0, 0.0),
    (2, 1, 2048, 32, 4, 2, (512, 512, 256), 3.0, 1.0),
    (2, 1, 4096, 8, 2, 2, (256, 512, 256), 10.0, 0.0),
    (2, 1, 4096, 64, 2, 1, (128, 128), 0.3, 1.5), (2, 1, 8192, 4, 1, 2, (128, 64), 1.0, 0.0),
    (2, 1, 8192, 16, 2, 3, (256, 128, 64), 10.0, 1.0),
    (2, 2, 256, 16, 2, 4, (1024, 256), 1.0, 0.0), (2, 2, 256, 128, 4, 2, (512, 256), 0.3, 0.0),
    (2, 2, 512, 64, 2, 4, (256, 256), 0.3, 0.0), (2, 2, 1024, 8, 4, 1, (256, 128), 0.3, 0.0),
    (2, 2, 1024, 64, 2, 4, (256, 512, 256), 1.0, 1.0),
    (2, 2, 2048, 256, 4, 1, (256, 128), 1.0, 1.5), (2, 2, 2048, 16, 1, 3, (512, 128), 3.0, 0.0),
    (2, 2, 4096, 4, 2, 2, (128, 128, 64), 1.0, 0.0),
    (2, 2, 4096, 32, 3, 1, (256, 256), 10.0, 0.0),
    (4, 1, 256, 8, 1, 2, (512, 512, 128), 1.0, 0.0), (4, 1, 512, 32, 2, 1, (1024, 128), 1.0, 1.0),
    (4, 1, 1024, 128, 2, 2, (256, 256), 0.3, 0.0), (4, 1, 2048, 16, 2, 4, (128, 64), 0.3, 0.0),
    (4, 1, 4096, 64, 1, 1, (256, 256, 128), 3.0, 1.5),
)  # fmt: skip
GRID = tuple(Setting(*row) for row in _ROWS)
AUTO = "auto"
FIXED: Mapping[str, Mapping[str, Any]] = {
    "rows": {}, "2 chunks": {"chunks": 2}, "4 chunks": {"chunks": 4},
    "two levels": {"hierarchical": True},
    "two levels, 2 chunks": {"hierarchical": True, "chunks": 2}, "weights": {"shadowed": "all"},
}  # fmt: skip
# On hosts of one rank
SAME = {"two levels": "rows", "two levels, 2 chunks": "2 chunks"}


def adaptive(bench: Bench) -> list[Result]:
    rows: list[dict[str, Any]] = []
    for hosts, per_host in dict.fromkeys((s.hosts, s.per_host) for s in GRID):
        with network_world(hosts, per_host, 1.0) as world:
            for setting in GRID:
                if (setting.hosts, setting.per_host) != (hosts, per_host):
                    continue
                got = shape_links(bench, world, setting.gbits)
                hows = {**_different(per_host), AUTO: {"auto": True}}
                layer, seconds = {"setting": asdict(setting)}, bench.seconds / len(GRID)
                answer = asked_for(world, "modes", layer, seconds, hows=hows, drop_slow=True)
                rows.append({"setting": setting.name, "carries": got, **_row(answer)})
                bench.say(f"  {_told(rows[-1])}")
    return _results(rows)


def _different(per_host: int) -> dict[str, Mapping[str, Any]]:
    return {name: how for name, how in FIXED.items() if per_host > 1 or name not in SAME}


def _row(answer: Mapping[str, Any]) -> dict[str, Any]:
    ms = {name: statistics.median(took) * 1e3 for name, took in answer["seconds"].items()}
    ms |= {name: ms[same] for name, same in SAME.items() if name not in ms}
    best = min(FIXED, key=ms.__getitem__)
    chosen = answer["chosen"][-1]
    return {"ms": ms, "best": best, "regret": ms[AUTO] / ms[best], "chosen": chosen}


def _results(rows: Sequence[Mapping[str, Any]]) -> list[Result]:
    regrets = Spread.of([row["regret"] for row in rows])
    worst = max(rows, key=lambda row: row["regret"])
    single = min(FIXED, key=lambda name: _mean([row["ms"][name] for row in rows]))
    gains = [row["ms"][single] / row["ms"][AUTO] for row in rows]
    gain = replace(Spread.of(gains), median=_mean(gains))
    note = f"over {single!r} everywhere; geometric mean over {len(rows)} settings"
    return [
        Result("adaptive_regret", regrets, details=rows),
        Result(
            "adaptive_regret_worst", replace(regrets, median=worst["regret"]), note=worst["setting"]
        ),
        Result("adaptive_gain", gain, note=note),
    ]


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values)


def _told(row: Mapping[str, Any]) -> str:
    ms = ", ".join(f"{name} {took:.1f}" for name, took in row["ms"].items())
    return f"{row['setting']}: {ms} ms; regret {row['regret']:.2f} over {row['best']}"


ADAPTIVE_RACES: tuple[Race[Bench], ...] = (
    Race(
        {
            "adaptive_regret": Target(1.05, at_most=True),
            "adaptive_regret_worst": Target(1.25, at_most=True),
            "adaptive_gain": Target(1.2),
        },
        adaptive,
    ),
)


# Races of uneven loads, on two ranks with a core each

HOT = 0.9  # of the picks, on one expert
UNEVEN = 0.8  # of the picks, on the first rank: loads of 4 to 1
# Much to compute beside what travels
LOAD_LAYER = Setting(
    hosts=2, per_host=1, batch=4096, experts=16, k=1, gates=1, widths=(256, 2048, 256), gbits=1.0
)


def shadowed(bench: Bench) -> list[Result]:
    """Rows that travel to a hot expert, over its weights that travel to the rows."""
    hows = {"rows": {}, "shadowed": {"shadowed": [0]}}
    times, got, _ = _loaded(bench, "modes", {"hot": HOT}, hows=hows)
    # The first rank has these and half of the others, instead of half of all
    bound = (HOT + (1 - HOT) / LOAD_LAYER.ranks) * LOAD_LAYER.ranks
    note = f"{HOT:.0%} of the picks on one of {LOAD_LAYER.experts}, bound {bound:.2f}; {got}"
    return [speedup("shadow_gain", times, "rows", "shadowed", note=note)]


def placed(bench: Bench) -> list[Result]:
    """Experts that lie evenly, over experts that were placed by their loads."""
    times, got, answer = _loaded(bench, "placements", {"uneven": UNEVEN})
    busiest = " to ".join(f"{answer[when]:.2f}" for when in ("before", "after"))
    note = f"the busiest rank's load over the mean: {busiest}; bound 1.60; {got}"
    return [speedup("placement_gain", times, "even", "placed", note=note)]


def _loaded(
    bench: Bench, job: str, layer: Mapping[str, Any], **asked: Any
) -> tuple[Times, str, Mapping[str, Any]]:
    setting = LOAD_LAYER
    with network_world(setting.hosts, setting.per_host, setting.gbits) as world:
        got = shape_links(bench, world, setting.gbits)
        answer = asked_for(world, job, {"setting": asdict(setting), **layer}, bench.seconds / 2,
                           **asked)  # fmt: skip
    return Times(answer["seconds"]), got, answer


LOAD_RACES: tuple[Race[Bench], ...] = (
    Race({"shadow_gain": Target(1.4)}, shadowed),
    Race({"placement_gain": Target(1.25)}, placed),
)


# A whole training step on hosts: today's exchange beside the chosen one

HOSTS, PER_HOST, GBITS = 2, 2, 1.0
# 256 experts over sharded tables; loads are evened out, or what is raced is how far they are not
MODEL = (
    "model.num_experts=256", "model.expert.hidden=[1024, 512]", "model.gate.kind=top_k",
    "model.gate.k=2", "model.gate.balance_loss=1.0", "parallel.experts=spread",
)  # fmt: skip
EXCHANGES = {"rows": "parallel.exchange=rows", "auto": "parallel.exchange=auto"}
# The choices at calls 0, 10 and 50 are over by then, so that none of their trials is raced
SETTLED = 90


def step(bench: Bench) -> list[Result]:
    specs = {name: _spec(bench, exchange) for name, exchange in EXCHANGES.items()}

    def settle(running: Mapping[str, Contestant]) -> None:
        for contestant in running.values():
            window(contestant, SETTLED)

    with host_network(HOSTS) as network:
        network.shape(GBITS)
        times = bench.race(specs, seats=seats(network, PER_HOST), before=settle)
    note = f"256 experts 1024-512, {HOSTS} × {PER_HOST} ranks, {GBITS:g} Gbit/s"
    return [speedup("step_gain", times, "rows", "auto", note=note)]


def _spec(bench: Bench, exchange: str) -> Spec:
    one = bench.spec("mmoe", "big", "fp32")
    overrides = (*MODEL, exchange, *one.overrides)
    return replace(one, threads=1, ranks=HOSTS * PER_HOST, overrides=overrides)


STEP_RACES: tuple[Race[Bench], ...] = (Race({"step_gain": Target(1.1)}, step),)


def _details(results: Sequence[Result]) -> None:
    print_details([result for result in results if result.key == "adaptive_regret"])


def main() -> None:
    """Races where hosts can be built; else says in one line why not."""
    reason = why_not()
    if reason is not None:
        sys.stderr.write(f"benchmarks.network: nothing measured: {reason}\n")
        return
    # Hosts are removed on the way out
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run_program(
        "network",
        (*EXCHANGE_RACES, *LOAD_RACES, *ADAPTIVE_RACES, *STEP_RACES),
        "Paired ratios: median and 10–90 % range",
        _details,
        threads=1,
        changes="every config",
    )


if __name__ == "__main__":
    main()
