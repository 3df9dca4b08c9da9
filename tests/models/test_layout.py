"""Who holds what of a network over ranks; that it then trains as one process is tested there."""

import pytest
import torch

from mmoe.config import ModelConfig, config_from_dict
from mmoe.config.parallel import ParallelConfig
from mmoe.mixture import MLPExperts
from mmoe.models import layout as layouts
from mmoe.models import sections
from mmoe.models.layout import (
    ONE_PROCESS,
    Layout,
    choose_layout,
    experts_are_spread,
    fewest_slices,
    to_score,
)
from mmoe.parallel import Hosts, Mode, ensure_process_group

TOP_K = {"kind": "top_k", "k": 2}


@pytest.mark.parametrize(
    ("model", "spread"),
    [
        ({}, False),
        ({"gate": TOP_K}, True),
        ({"gate": {"kind": "static"}}, False),
        ({"gate": TOP_K, "execution": "grouped"}, True),
        ({"gate": TOP_K, "execution": "dense"}, False),
        ({"gate": TOP_K, "execution": "padded", "capacity": {}}, False),
        ({"kind": "shared_bottom"}, False),
        ({"kind": "single_task"}, False),
    ],
)
def test_auto_spreads_the_experts_of_gates_that_pick(model, spread):
    model = ModelConfig.model_validate(model)
    assert experts_are_spread(model, ParallelConfig()) == spread
    assert experts_are_spread(model, ParallelConfig(experts="spread"))
    assert not experts_are_spread(model, ParallelConfig(experts="replicated"))


def test_one_rank_needs_no_layout(monkeypatch):
    model, spread = ModelConfig(), ParallelConfig(experts="spread", wire_precision="bf16")
    assert choose_layout(model, spread) is ONE_PROCESS
    monkeypatch.setattr(layouts, "world_size", lambda: 4)
    monkeypatch.setattr(
        layouts.Hosts, "of_group", lambda host_size: Hosts(num_ranks=4, size=host_size or 4)
    )
    assert choose_layout(model, None) is ONE_PROCESS
    chosen = choose_layout(model, spread)
    assert (chosen.world_size, chosen.spread, chosen.wire_dtype) == (4, True, torch.bfloat16)


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ({}, Mode()),
        ({"exchange": "rows", "chunks": 4}, Mode(chunks=4)),
        ({"exchange": "hierarchical", "chunks": 2}, Mode(hierarchical=True, chunks=2)),
        ({"exchange": "gathered"}, Mode(shadowed="all")),
        ({"shadowed": [2]}, Mode()),  # whose level it is, the network says
        ({"exchange": "auto"}, "auto"),
    ],
)
def test_the_exchange_is_as_the_config_says(monkeypatch, said, mode):
    monkeypatch.setattr(layouts, "world_size", lambda: 4)
    monkeypatch.setattr(
        layouts.Hosts, "of_group", lambda host_size: Hosts(num_ranks=4, size=host_size or 4)
    )
    model = ModelConfig.model_validate({"gate": TOP_K})
    chosen = choose_layout(model, ParallelConfig(host_size=2, **said))
    assert chosen.mode == mode
    assert chosen.hosts == Hosts(num_ranks=4, size=2)


@pytest.mark.parametrize("exchange", ["auto", "gathered"])
def test_chunks_are_refused_where_they_mean_nothing(exchange):
    with pytest.raises(ValueError, match=r"chunks is 2, but .*leave chunks out"):
        ParallelConfig(exchange=exchange, chunks=2)


def test_shadowed_experts_are_counted_level_by_level(monkeypatch):
    """As `mmoe explain` counts them: here six of the first level, then as many of the last."""
    ensure_process_group()
    monkeypatch.setattr(sections, "choose_layout", lambda *_: Layout(world_size=1, spread=True))
    model = ModelConfig.model_validate({"kind": "ple", "shared_experts": 2, "gate": TOP_K})
    chosen = ParallelConfig(shadowed=[1, 6, 8], exchange="hierarchical", chunks=2)
    network = sections.build_network(model, 5, ["click", "buy"], chosen)
    modes = [level.mixture.dispatcher.mode for level in network.levels]
    assert [mode.shadowed for mode in modes] == [(0, 5), (1,)]
    with pytest.raises(ValueError, match="there is no expert 13; the model has 1 to 12"):
        sections.build_network(model, 5, ["click", "buy"], ParallelConfig(shadowed=[13]))


def _sliced(slices):
    return Layout(parallel=ParallelConfig(slices=slices))


def test_slices_are_as_few_as_give_each_rank_one():
    experts = MLPExperts(2, 4, [6, 3], output_activation=None)
    by_ranks = {w: fewest_slices(experts, w) for w in (1, 2, 3, 4, 5, 7, 12, 13)}
    assert by_ranks == {1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 7: 6, 12: 6, 13: 6}
    whole = MLPExperts(2, 4, [6, 3])  # with an activation at the end
    assert fewest_slices(whole, 4) == 1
    assert _sliced("auto").cut(whole, 4) is whole and Layout().cut(experts, 4) is experts
    assert len(_sliced("auto").cut(experts, 4)) == len(_sliced(2).cut(experts, 1)) == 4
    with pytest.raises(ValueError, match=r"parallel.slices is 2, but .* output_activation: expect"):
        _sliced(2).cut(whole, 4)


@pytest.mark.parametrize("execution", ["dense", "padded"])
def test_spread_experts_run_grouped(execution):
    with pytest.raises(ValueError, match=rf"experts is spread, but .* {execution} runs"):
        config_from_dict(
            {
                "features": [{"kind": "numeric", "name": "age"}],
                "tasks": [{"name": "click", "label": "click"}],
                "model": {"gate": TOP_K, "execution": execution, "capacity": {}},
                "parallel": {"experts": "spread"},
            }
        )


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (3, None), (1, None)])
def test_any_number_of_ranks_scores_what_hosts_of_two_trained(monkeypatch, ranks, size):
    monkeypatch.setattr(layouts, "world_size", lambda: ranks)
    raw = {
        "features": [{"kind": "numeric", "name": "age"}],
        "tasks": [{"name": "click", "label": "click"}],
        "parallel": {"host_size": 2, "slices": 2},
    }
    found = to_score(config_from_dict(raw)).parallel
    assert (found.host_size, found.slices) == (size, 1)


@pytest.mark.parametrize("experts", ["spread", "replicated"])
def test_a_host_size_is_looked_at_wherever_experts_are(monkeypatch, experts):
    """Else ranks with replicated experts would refuse it late, and leave a folder behind."""
    monkeypatch.setattr(layouts, "world_size", lambda: 4)
    monkeypatch.setattr(
        layouts.Hosts, "of_group", lambda host_size: Hosts(num_ranks=4, size=host_size)
    )
    with pytest.raises(ValueError, match=r"host_size: .* got 3"):
        choose_layout(ModelConfig(), ParallelConfig(experts=experts, host_size=3))
