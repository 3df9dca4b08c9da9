"""Converted networks over ranks train as in one process, with DDP, FSDP2 or sums for the rest.

The ranks run `world.py`, all cases in one world, and report what they found.
"""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from mmoe.integrations.convert import convert, distribute
from mmoe.mixture import MLPExperts, MultiGateMixture, Pool
from mmoe.parallel import ensure_process_group


@pytest.fixture(scope="module")
def world(run_ranks):
    """What every rank found: `[rank][case][key]`."""
    return run_ranks("integrations.convert.world", 4)


@pytest.mark.parametrize("what", ["experts", "others", "scores"])
def test_training_equals_one_process(world, what):
    worst = {case: max(rank[case][what] for rank in world) for case in world[0]}
    assert {case: error for case, error in worst.items() if not error <= 1e-12} == {}


def test_every_parameter_has_learnt(world):
    assert min(found["moved"] for rank in world for found in rank.values()) > 1e-7


def make_network(**settings):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return convert(nn.TransformerEncoder(layer, 1), 4, **settings)


class NoPart(Pool):
    output_dim = 8

    def __len__(self):
        return 2

    def dense(self, inputs):
        return [inputs[0], inputs[0]]

    def grouped(self, rows, offsets_E1):
        return rows


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(2, 2), r"model: it has no mixture of experts; make some with convert"),
        (lambda: MultiGateMixture(8, 1, MLPExperts(2, 8, [8])), "got a mixture itself"),
        (lambda: DistributedDataParallel(make_network()), "neither wrapped nor sharded"),
        (
            lambda: distribute(make_network(), init_device_mesh("cpu", (1,))),
            r"the experts of layers\.0\.linear1\.mixture are spread already; distribute once",
        ),
        (
            lambda: nn.ModuleList([MultiGateMixture(8, 1, NoPart())]),
            r"the experts of 0 are a NoPart, which has no part\(experts\); use MLPExperts",
        ),
    ],
)
def test_what_is_refused(make, message):
    ensure_process_group()
    with pytest.raises(ValueError, match=message):
        distribute(make(), init_device_mesh("cpu", (1,)))


def test_settings_that_are_refused():
    ensure_process_group()
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "experts"))
    with pytest.raises(
        ValueError, match=r"mesh: expected one dimension .* got 2 \(data, experts\)"
    ):
        distribute(make_network(), mesh)
    with pytest.raises(ValueError, match="replicas: expected one dimension"):
        distribute(make_network(), mesh["experts"], replicas=mesh)
    with pytest.raises(ValueError, match="mesh: expected a DeviceMesh, got 2"):
        distribute(make_network(), 2)
    with pytest.raises(ValueError, match="gradients: expected 'mean' or 'sum', got 'median'"):
        distribute(make_network(), mesh["experts"], gradients="median")


def test_ddp_leaves_experts_alone_by_itself():
    ensure_process_group()
    model = distribute(make_network(), init_device_mesh("cpu", (1,)))
    wrapped = DistributedDataParallel(model)
    names = [name for name, _ in model.named_parameters() if ".experts." in name]
    assert names and set(names) <= wrapped.parameters_to_ignore
    wrapped(torch.zeros(2, 3, 8)).sum().backward()
