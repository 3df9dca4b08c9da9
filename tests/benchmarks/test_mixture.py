"""What the races of the sparse layer take for granted of it."""

from dataclasses import replace

import pytest

from benchmarks.mixture import SPARSE, _chosen, _without_experts
from benchmarks.racing.layers import Workload, correlated_logits, draw, ours


@pytest.mark.parametrize(("experts", "chosen"), [(64, "grouped"), (2, "dense")])
def test_what_auto_chose_is_seen(experts, chosen):
    work = Workload(B=256, D=64, hidden=(64, 32), E=experts, G=1, k=2)

    assert _chosen(work, draw(work), correlated_logits(work, 0.0)) == chosen


def test_experts_that_cost_nothing_give_shapes_and_gradients():
    work = replace(SPARSE, B=32)
    values = draw(work)
    whole, rest = ours(work, values, execution="grouped"), _without_experts(work, values)

    for layer in (whole, rest):
        layer.step()
    assert [y.shape for y in rest.forward()] == [y.shape for y in whole.forward()]
