"""The mode that is chosen beside every fixed one, on the grid."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.network.exchange_races import MARGIN, shape_links
from benchmarks.network.grid import GRID
from benchmarks.network.world import network_world
from benchmarks.racing.races import Race
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread
from benchmarks.train.bench import Bench

AUTO = "auto"
FIXED: Mapping[str, Mapping[str, Any]] = {
    "rows": {},
    "2 chunks": {"chunks": 2},
    "4 chunks": {"chunks": 4},
    "two levels": {"hierarchical": True},
    "two levels, 2 chunks": {"hierarchical": True, "chunks": 2},
    "weights": {"shadowed": "all"},
}
# On hosts of one rank
SAME = {"two levels": "rows", "two levels, 2 chunks": "2 chunks"}


def adaptive(bench: Bench) -> list[Result]:
    """Regret and gain of the choice, over the grid."""
    rows: list[dict[str, Any]] = []
    for hosts, per_host in dict.fromkeys((s.hosts, s.per_host) for s in GRID):
        with network_world(hosts, per_host, 1.0) as world:
            for setting in GRID:
                if (setting.hosts, setting.per_host) != (hosts, per_host):
                    continue
                got = shape_links(bench, world, setting.gbits)
                answer = world.ranks.ask(
                    "modes",
                    within=bench.seconds + MARGIN,
                    layer={"setting": asdict(setting)},
                    hows={**_different(per_host), AUTO: {"auto": True}},
                    seconds=bench.seconds / len(GRID),
                    drop_slow=True,
                )
                rows.append({"setting": setting.name, "carries": got, **_row(answer)})
                bench.say(f"  {_told(rows[-1])}")
    return _results(rows)


def _different(per_host: int) -> dict[str, Mapping[str, Any]]:
    """The fixed modes, of those that are the same here one."""
    return {name: how for name, how in FIXED.items() if per_host > 1 or name not in SAME}


def _row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Milliseconds of every contestant, and what the choice cost over the best of the fixed."""
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
        Result(key="adaptive_regret", spread=regrets, details=rows),
        Result(
            key="adaptive_regret_worst",
            spread=replace(regrets, median=worst["regret"]),
            note=worst["setting"],
        ),
        Result(key="adaptive_gain", spread=gain, note=note),
    ]


def _mean(values: Sequence[float]) -> float:
    """The geometric one."""
    return statistics.geometric_mean(values)


def _told(row: Mapping[str, Any]) -> str:
    ms = ", ".join(f"{name} {took:.1f}" for name, took in row["ms"].items())
    return f"{row['setting']}: {ms} ms; regret {row['regret']:.2f} over {row['best']}"


ADAPTIVE_RACES: tuple[Race[Bench], ...] = (
    Race(("adaptive_regret", "adaptive_regret_worst", "adaptive_gain"), adaptive),
)
