"""The cost model, without any process: volumes as counted, and choices that a person would make."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from mmoe.parallel import ExpertPlacement, Hosts, LinkRates, Mode
from mmoe.parallel.adaptive.cost_model import Call, CallParts, candidates, predict

GBIT = 1e9 / 8
RATES = LinkRates(
    latency=2e-4,
    bytes_per_second_inside=2e9,
    bytes_per_second_between=GBIT,
    core_seconds_per_byte=3e-10,
    flops_per_second=1e11,
)


def _call(*, experts=64, hosts=(2, 1), **changes) -> Call:
    count, size = hosts
    settings = {
        "rows": 1024,
        "picks": (4, 2),
        "pairs_per_row": 8,
        "widths": (256, 256),
        "parameters": 256 * 256,
        "loads": (1 / experts,) * experts,
        "placement": ExpertPlacement.even(experts, count * size),
        "hosts": Hosts(num_ranks=count * size, size=size),
    }
    return Call(**{**settings, **changes})


def fastest(call, **asked):
    return candidates(call, RATES, **asked)[0][0]


def _skewed(experts: int, hot: float) -> tuple[float, ...]:
    return (hot, *[(1 - hot) / (experts - 1)] * (experts - 1))


def test_few_rows_travel_and_few_weights_travel():
    assert not fastest(_call(rows=256, experts=256, parameters=256 * 1024)).shadowed
    few_weights = _call(rows=8192, experts=4, parameters=256 * 16, pairs_per_row=3.9)
    assert fastest(few_weights).shadowed == "all"


def test_a_hot_expert_is_shadowed_and_the_others_are_not():
    call = _call(rows=4096, loads=_skewed(64, 0.9), parameters=256 * 512, pairs_per_row=2)
    chosen = fastest(call)
    assert chosen.shadowed[:1] == (0,)
    assert len(chosen.shadowed) < 16
    assert call.by_load[0] == 0
    assert not fastest(call, shadows=False).shadowed


@pytest.mark.parametrize(("size", "bound"), [(2, 4 / 3), (4, 8 / 5)])
def test_two_levels_carry_as_many_bytes_less_as_can_be(size, bound):
    # 4 independent gates, top-2: each row has picks on every host, and 3 sums come back from one
    call = _call(hosts=(2, size), picks=(4, 2), pairs_per_row=7.6, experts=64)
    rates = replace(RATES, bytes_per_second_inside=1e12)
    flat, levels = (predict(Mode(hierarchical=h), call, rates) for h in (False, True))
    assert flat.link_seconds / levels.link_seconds == pytest.approx(bound, rel=0.05)


def test_two_levels_need_hosts_of_several_ranks():
    modes = [mode for mode, _ in candidates(_call(hosts=(4, 1)), RATES)]
    assert not any(mode.hierarchical for mode in modes)
    assert any(mode.hierarchical for mode, _ in candidates(_call(hosts=(2, 2)), RATES))


def test_chunks_pay_where_links_and_products_take_alike():
    call = _call(rows=4096, parameters=256 * 500)
    strict, cut = (predict(Mode(chunks=n), call, RATES) for n in (1, 4))
    assert 0.5 < strict.link_seconds / strict.core_seconds < 2
    assert strict.seconds / cut.seconds > 1.25
    assert cut.seconds >= max(cut.link_seconds, cut.core_seconds)
    tiny = _call(rows=4, parameters=256)
    assert fastest(tiny, shadows=False).chunks == 1


def test_chunks_are_no_more_than_rows():
    assert {mode.chunks for mode, _ in candidates(_call(rows=2), RATES)} <= {1, 2}


def test_volumes_are_those_of_drawn_picks():
    experts, gates, k, rows = 32, 3, 2, 20_000
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(rows, gates, experts, generator=generator)
    logits[..., 0] += 1.5
    picks_BGK = logits.topk(k, -1).indices
    chosen_BE = torch.zeros(rows, experts).scatter_(1, picks_BGK.flatten(1), 1)
    pairs = chosen_BE.sum()
    loads = tuple((chosen_BE.sum(0) / pairs).tolist())
    call = _call(
        experts=experts,
        hosts=(2, 2),
        rows=rows,
        picks=(gates, k),
        pairs_per_row=float(pairs) / rows,
        loads=loads,
    )
    parts = CallParts(call, RATES)
    for on in ([0], [3], [0, 1], [2, 3]):
        here = [e for r in on for e in call.placement.on(r)]
        out, back = parts._volumes(sum(loads[e] for e in here))
        there_BGK = torch.isin(picks_BGK, torch.tensor(here))
        sums = int(there_BGK.any(2).sum())
        counted = min(int(chosen_BE[:, here].sum()), sums) * 256 * 4
        rows_there = int(there_BGK.flatten(1).any(1).sum())
        assert back == pytest.approx(counted, rel=0.08)
        assert out == pytest.approx(rows_there * 256 * 4, rel=0.08)


def test_every_second_is_one_and_faster_links_take_fewer():
    slow, fast = (replace(RATES, bytes_per_second_between=g * GBIT) for g in (0.1, 10))
    for hosts, hot in product([(2, 1), (2, 2), (4, 1), (1, 2)], [1 / 64, 0.7]):
        call = _call(hosts=hosts, loads=_skewed(64, hot))
        for mode, cost in candidates(call, slow):
            assert cost.seconds > 0
            assert predict(mode, call, fast).seconds <= cost.seconds


def test_what_is_refused():
    with pytest.raises(ValueError, match="loads: expected one for each of the 64 experts"):
        _call(loads=(1.0,))
    with pytest.raises(ValueError, match="flops_per_second: expected more than 0, got 0"):
        replace(RATES, flops_per_second=0)
    with pytest.raises(ValueError, match="latency: expected 0 or more"):
        replace(RATES, latency=-1)
