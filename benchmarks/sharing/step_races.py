"""A training step of the sparse layer: gates that decide together over gates that decide alone.

The four gates of each contestant have the same logits and mix four experts each; how many distinct
pairs of row and expert that makes is the difference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.mixture.layers import (
    Values,
    Workload,
    correlated_logits,
    draw,
    ours,
    trained_logits,
)
from benchmarks.racing.harness import Clock, Race, Result, Times, speedup
from benchmarks.sharing.steps import Bench
from mmoe.mixture import Selection
from mmoe.mixture.gates.learned import LearnedGate
from mmoe.mixture.inputs import Inputs

LAYER = Workload(B=4096, D=256, hidden=(512, 256), E=64, G=4, k=4)
WAYS: Mapping[str, Selection | None] = {
    "alone": None,
    "joint": Selection(shared_k=3, private_k=1),
    "budget": Selection(private_k=4, budget=4),
}
KEYS = ("joint_step_gain", "budget_step_gain")


class GivenLogits(LearnedGate):
    """Gates whose logits are parameters, and which decide alone or together."""

    def __init__(self, logits_BGE: Tensor, k: int, selection: Selection | None) -> None:
        _, G, E = logits_BGE.shape
        super().__init__(None, G, E, {}, k=k, selection=selection)
        self.logits_BGE = nn.Parameter(logits_BGE.clone())

    def scores(self, inputs: Sequence[Tensor], rows: Inputs | None) -> Tensor:
        """Returns the logits, whatever the input."""
        return self.logits_BGE


def step_gains(bench: Bench) -> list[Result]:
    """On independent logits, and on those of gates that were trained without this."""
    clock = bench.clock
    work = replace(LAYER, device=clock.device)
    values = draw(work)
    results = _gains(clock, work, values, [correlated_logits(work, shared=0.0)], "")
    trained = trained_logits(work.E, work, clock)
    return results + _gains(clock, work, values, trained, "_trained")


def _gains(
    clock: Clock, work: Workload, values: Values, batches: Sequence[Tensor], ending: str
) -> list[Result]:
    times: Times | None = None
    pairs = dict.fromkeys(WAYS, 0)
    for logits_BGE in batches:
        steps = {way: _step(work, values, logits_BGE, way, pairs) for way in WAYS}
        found = clock.race(f"steps{ending}", steps, share=1 / len(batches))
        times = found if times is None else times.then(found)
    assert times is not None
    rows = work.B * len(batches)
    return [
        speedup(
            f"{way}_step_gain{ending}",
            times,
            "alone",
            way,
            f"{pairs[way] / rows:.2f} pairs a row, not {pairs['alone'] / rows:.2f}: "
            f"bound {pairs['alone'] / pairs[way]:.2f}",
        )
        for way in ("joint", "budget")
    ]


def _step(
    work: Workload, values: Values, logits_BGE: Tensor, way: str, pairs: dict[str, int]
) -> Callable[[], None]:
    """One way's training step; counts the pairs that it computes."""
    assert work.k is not None
    gate = GivenLogits(logits_BGE, work.k, WAYS[way]).to(work.device)
    visible_GE = torch.ones(work.G, work.E, dtype=torch.bool, device=work.device)
    with torch.no_grad():
        output = gate([values.x_BD] * work.G, visible_GE)
    pairs[way] += int(output.picked(visible_GE).any(1).sum())
    return ours(work, values, gate=gate).step


RACES = (Race(KEYS, step_gains),)
