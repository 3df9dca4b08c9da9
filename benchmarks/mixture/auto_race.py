"""What the automatic choice between dense and grouped execution costs where it errs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from benchmarks.mixture.bench import Bench, Race
from benchmarks.mixture.gate_races import given
from benchmarks.mixture.layers import GivenLogits, our_layer
from benchmarks.mixture.workloads import Values, Workload, correlated_logits, distinct_pairs, draw
from benchmarks.racing.results import Result
from benchmarks.racing.times import Spread

# Experts of a ranker, of the sparse layer, and small ones: D, widths
RANKER, SPARSE, SMALL = (330, (256, 128)), (256, (512, 256)), (64, (64, 32))
# B, E, G, K, how much of their variance the gates share
RANKER_SETTINGS = (
    (64, 4, 2, 2, 0.0), (64, 8, 2, 2, 0.0), (64, 16, 4, 2, 0.0), (64, 64, 1, 2, 0.0),
    (64, 64, 4, 2, 0.8), (256, 4, 2, 1, 0.0), (256, 8, 1, 2, 0.0), (256, 8, 4, 2, 0.0),
    (256, 16, 2, 4, 0.8), (256, 32, 4, 2, 0.0), (256, 64, 8, 4, 0.0), (1024, 4, 1, 1, 0.0),
    (1024, 4, 2, 2, 0.0), (1024, 8, 2, 2, 0.0), (1024, 8, 2, 2, 0.8), (1024, 8, 4, 4, 0.0),
    (1024, 16, 1, 2, 0.0), (1024, 16, 4, 2, 0.0), (1024, 16, 4, 2, 0.8), (1024, 16, 8, 4, 0.0),
    (1024, 32, 4, 4, 0.0), (4096, 4, 1, 1, 0.0), (4096, 4, 1, 2, 0.0), (4096, 4, 4, 1, 0.0),
    (4096, 8, 1, 2, 0.0), (4096, 8, 2, 2, 0.0), (4096, 8, 4, 2, 0.0), (4096, 8, 4, 2, 0.8),
    (4096, 8, 8, 2, 0.0), (4096, 16, 2, 4, 0.0), (4096, 16, 4, 4, 0.0), (4096, 32, 4, 4, 0.8),
    (256, 4, 4, 3, 0.0), (1024, 4, 2, 4, 0.0), (4096, 4, 4, 4, 0.0), (4096, 8, 2, 8, 0.0),
)  # fmt: skip
SPARSE_SETTINGS = (
    (64, 8, 1, 2, 0.0), (64, 8, 4, 2, 0.0), (512, 4, 2, 2, 0.0), (512, 16, 4, 4, 0.0),
    (2048, 4, 1, 2, 0.0), (2048, 8, 2, 2, 0.0), (2048, 16, 4, 2, 0.0), (2048, 16, 8, 4, 0.8),
)  # fmt: skip
SMALL_SETTINGS = (
    (256, 4, 2, 1, 0.0), (1024, 8, 2, 2, 0.0), (1024, 16, 8, 2, 0.0), (4096, 4, 2, 1, 0.0),
    (4096, 8, 4, 2, 0.0), (4096, 16, 4, 2, 0.8), (1024, 4, 4, 4, 0.0), (4096, 8, 4, 6, 0.0),
)  # fmt: skip
SHARE = 0.15  # of the time of an ordinary race, for each setting


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One setting: what was chosen, and what both cost."""

    work: Workload
    pair_share: float  # distinct pairs over all (sample, expert) pairs
    chosen: str
    dense_ms: float
    grouped_ms: float

    @property
    def regret(self) -> float:
        """Time of the choice over the smaller of both times."""
        times = {"dense": self.dense_ms, "grouped": self.grouped_ms}
        return times[self.chosen] / min(times.values())

    def as_json(self) -> dict[str, Any]:
        """A row of the table."""
        work = self.work
        return {
            "B": work.B,
            "E": work.E,
            "G": work.G,
            "K": work.k,
            "experts": "-".join(map(str, work.widths)),
            "pair_share": round(self.pair_share, 3),
            "chosen": self.chosen,
            "dense_ms": round(self.dense_ms, 3),
            "grouped_ms": round(self.grouped_ms, 3),
            "regret": round(self.regret, 3),
        }


def auto_regret(bench: Bench) -> list[Result]:
    """The worst choice of all settings."""
    choices = [
        _choice(bench, widths, setting)
        for widths, settings in (
            (RANKER, RANKER_SETTINGS),
            (SPARSE, SPARSE_SETTINGS),
            (SMALL, SMALL_SETTINGS),
        )
        for setting in settings
    ]
    worst = max(choices, key=lambda choice: choice.regret)
    right = sum(choice.regret == 1 for choice in choices)
    ours_ms = {"dense": worst.dense_ms, "grouped": worst.grouped_ms}[worst.chosen]
    result = Result(
        key="auto_regret",
        # The key is the worst; the range is that of all settings.
        spread=replace(Spread.of([c.regret for c in choices]), median=worst.regret),
        ours_ms=ours_ms,
        other_ms=min(worst.dense_ms, worst.grouped_ms),
        note=f"{right} of {len(choices)} right; worst {_name(worst.work)}: {worst.chosen}",
        details=[choice.as_json() for choice in choices],
    )
    return [result]


def _choice(
    bench: Bench, experts: tuple[int, tuple[int, ...]], setting: tuple[int, int, int, int, float]
) -> Choice:
    B, E, G, K, shared = setting
    work = Workload(B=B, D=experts[0], hidden=experts[1], E=E, G=G, k=K, device=bench.device)
    values = draw(work)
    logits_BGE = correlated_logits(work, shared)
    contestants = {
        "mmoe": given(work, values, logits_BGE, execution="dense"),
        "grouped": given(work, values, logits_BGE, execution="grouped"),
    }
    times = bench.compare(f"auto: {_name(work)}", contestants, work.tolerance, share=SHARE)
    return Choice(
        work=work,
        pair_share=distinct_pairs(logits_BGE, K)[0] / (B * E),
        chosen=_chosen(work, values, logits_BGE),
        dense_ms=times.median("mmoe") * 1e3,
        grouped_ms=times.median("grouped") * 1e3,
    )


def _chosen(work: Workload, values: Values, logits_BGE: Tensor) -> str:
    """Which of the two `auto` takes, seen by what it asks of its experts."""
    assert work.k is not None
    layer = our_layer(work, values, GivenLogits(logits_BGE, work.k))
    calls: list[str] = []
    dense: Any = layer.experts.dense

    def spy(*arguments: Any) -> list[Tensor]:
        calls.append("dense")
        return dense(*arguments)

    layer.experts.dense = spy  # type: ignore[method-assign]
    layer(values.x_BD)
    return "dense" if calls else "grouped"


def _name(work: Workload) -> str:
    return f"B {work.B}, E {work.E}, G {work.G}, K {work.k}"


def format_choices(choices: Sequence[Mapping[str, Any]]) -> str:
    """The settings as a table."""
    head = f"{'B':>5} {'E':>3} {'G':>2} {'K':>2}  {'experts':<12} {'pairs':>6} "
    lines = [f"{head}{'dense, ms':>10} {'grouped, ms':>12}  {'auto':<8} {'regret':>6}"]
    for c in choices:
        left = f"{c['B']:>5} {c['E']:>3} {c['G']:>2} {c['K']:>2}  {c['experts']:<12} "
        times = f"{c['pair_share']:>6.1%} {c['dense_ms']:>10.2f} {c['grouped_ms']:>12.2f}  "
        lines.append(f"{left}{times}{c['chosen']:<8} {c['regret']:>6.3f}")
    return "\n".join(lines)


AUTO_RACES = (Race(("auto_regret",), auto_regret),)
