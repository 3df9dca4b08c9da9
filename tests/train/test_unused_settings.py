"""Settings of `parallel` that do nothing are named."""

import pytest
from torch import nn

from mmoe.config.parallel import ParallelConfig
from mmoe.mixture import MLPExperts, MultiGateMixture
from mmoe.parallel import AllToAllDispatcher, ExpertPlacement, Hosts, ensure_process_group
from mmoe.train import ranks_report as unused
from mmoe.train.ranks_report import unused_settings


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({}, []),
        ({"host_size": 2, "timeout_seconds": 5}, []),  # do something all the same
        ({"exchange": "auto"}, ["parallel.exchange: for spread experts"]),
        (
            {"slices": 2, "shadowed": [1]},
            ["parallel.slices, parallel.shadowed: for spread experts"],
        ),
        (
            {"replicas": 2, "rebalance": "epoch", "chunks": 2},
            ["parallel.replicas, parallel.chunks, parallel.rebalance: for spread experts"],
        ),
    ],
)
def test_settings_of_spread_experts_where_they_are_replicated(said, named):
    lines = unused_settings(ParallelConfig(**said), nn.Linear(1, 1))
    assert [line.split(";")[0] for line in lines] == named


@pytest.mark.parametrize(("ranks", "size", "said"), [(4, 2, 0), (4, 4, 1), (4, 1, 1)])
def test_two_levels_on_hosts_that_have_one(monkeypatch, ranks, size, said):
    class _Dispatcher:
        hosts = Hosts(num_ranks=ranks, size=size)

    monkeypatch.setattr(unused, "dispatchers_of", lambda _: [_Dispatcher()])
    lines = unused_settings(ParallelConfig(exchange="hierarchical"), nn.Linear(1, 1))
    assert len(lines) == said
    assert all(f"here are {ranks // size} of {size}, so rows go in one level" in s for s in lines)
    assert not unused_settings(ParallelConfig(exchange="rows"), nn.Linear(1, 1))


@pytest.mark.parametrize(("experts", "slices", "said"), [(2, 1, 1), (3, 1, 0), (2, 2, 0)])
def test_ranks_that_wait_although_experts_were_to_be_cut(monkeypatch, experts, slices, said):
    class _Dispatcher:
        placement = ExpertPlacement.even(experts, 3, slices)

    monkeypatch.setattr(unused, "dispatchers_of", lambda _: [_Dispatcher()])
    lines = unused_settings(ParallelConfig(slices="auto"), nn.Linear(1, 1))
    assert len(lines) == said
    assert all("others are whole here, so 1 rank(s) compute none" in line for line in lines)
    assert not unused_settings(ParallelConfig(), nn.Linear(1, 1))


def test_spread_experts_use_what_is_said_of_them():
    ensure_process_group()
    dispatcher = AllToAllDispatcher(ExpertPlacement.even(2, 1))
    layer = MultiGateMixture(4, 1, MLPExperts(2, 4, [3]), dispatcher=dispatcher)
    assert unused_settings(ParallelConfig(chunks=2, rebalance="epoch"), layer) == []
