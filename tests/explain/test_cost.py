"""What experts cost: of which rows each is run, and what the time is divided by."""

import pytest
import torch

from mmoe import ops as cost_ops
from mmoe.explain import experts as cost
from mmoe.mixture import MixedExperts, MLPExperts, MultiGateMixture, SoftmaxGate, TopKGate
from mmoe.mixture.inputs import Inputs, RequestColumns
from mmoe.ops.row_sums import Owners

D, P, REQUESTS, EACH = 8, 3, 5, 20
ROWS = REQUESTS * EACH


def layer(gate=None, pool=None) -> MultiGateMixture:
    columns = RequestColumns(list(range(P)), width=D)
    pools = [MLPExperts(2, P, [6, 4]), MLPExperts(3, D, [6, 4])]
    pool = pool or MixedExperts(pools, requests=columns)
    gate = gate or SoftmaxGate(D, 2, len(pool))
    return MultiGateMixture(D, 2, experts=pool, gate=gate).eval()


def rows(*, exact=False, in_tiles=False) -> Inputs:
    return Inputs(
        x_QP=torch.randn(REQUESTS, P),
        x_BR=torch.randn(ROWS, D - P),
        owners=Owners(torch.arange(REQUESTS).repeat_interleave(EACH), REQUESTS),
        columns=RequestColumns(list(range(P)), width=D),
        exact=exact,
        in_tiles=in_tiles,
    )


@pytest.fixture(name="heights")
def _heights(monkeypatch):
    """Heights of the products of the first layers, in their order."""
    found = []

    def seen(function):
        def call(x, *more, **named):
            one = x if isinstance(x, torch.Tensor) else x[0]
            found.append((one.shape[-2], one.shape[-1]))
            return function(x, *more, **named)

        return call

    for name in ("dense_mm", "shared_mm", "dense_mlp"):
        monkeypatch.setattr(cost_ops, name, seen(getattr(cost_ops, name)))
    return found


@pytest.mark.parametrize(("expert", "exact"), [(0, False), (1, True), (2, True), (4, False)])
def test_it_is_what_the_expert_gives_the_rows(expert, exact):
    mixture, source = layer(), rows(exact=exact)
    once_per, run = cost.work_of(mixture, expert, source)
    assert once_per == ("request" if expert < 2 else "row")
    (found,) = run()
    torch.testing.assert_close(found, mixture.experts.dense([source.whole])[expert])


def test_an_expert_of_the_request_runs_once_a_request(heights):
    cost.work_of(layer(), 0, rows())[1]()
    assert heights[0] == (REQUESTS, P)
    heights.clear()
    cost.work_of(layer(), 0, rows(in_tiles=True))[1]()
    assert heights[0] == (128, P)  # as scoring pads it


def test_an_expert_of_the_row_has_its_part_of_the_request_once(heights):
    cost.work_of(layer(), 3, rows())[1]()
    assert heights[:2] == [(REQUESTS, P), (ROWS, D - P)]


@pytest.mark.parametrize("case", ["picks", "exact"])
def test_whole_rows_are_run_whole(heights, case):
    gate = TopKGate(D, 2, 5, k=2) if case == "picks" else None
    cost.work_of(layer(gate), 3, rows(exact=case == "exact"))[1]()
    assert heights[0] == (ROWS, D)


def test_without_experts_of_the_request_the_first_layer_is_shared_all_the_same(heights):
    once_per, run = cost.work_of(layer(pool=MLPExperts(4, D, [6, 4])), 3, rows())
    run()
    assert once_per == "row" and heights[:2] == [(REQUESTS, P), (ROWS, D - P)]
    once_per, run = cost.work_of(layer(pool=MLPExperts(4, D, [6, 4])), 3, Inputs(x_BR=rows().whole))
    heights.clear()
    run()
    assert once_per == "row" and heights[0] == (ROWS, D)


def test_milliseconds_are_for_a_thousand_rows_whatever_is_run(monkeypatch):
    """Of 100 rows of 5 requests the run took 0.02 s: 200 ms a thousand rows, not 4,000."""
    clock = iter(range(1000))
    monkeypatch.setattr(cost.time, "perf_counter", lambda: next(clock) * 0.02)
    assert cost._milliseconds(lambda: None, rows()) == pytest.approx(200)
    assert cost._milliseconds(lambda: None, Inputs(x_BR=rows().whole)) == pytest.approx(200)
