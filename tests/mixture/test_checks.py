"""What a mixture refuses: inputs of another kind, device or type, and settings of another type."""

import pytest
import torch
from torch import nn

from mmoe.mixture import (
    Capacity,
    DSelectKGate,
    ExpertPool,
    MLPExperts,
    MoE,
    MultiGateMixture,
    TopKGate,
)

ROWS = torch.randn(3, 4)


def make(pool="mlp", input_dim=4):
    experts = MLPExperts(3, 4, [2]) if pool == "mlp" else [nn.Linear(4, 2) for _ in range(3)]
    return MultiGateMixture(input_dim, 1, experts, gate=TopKGate(4, 1, 3, k=2))


@pytest.mark.whole
@pytest.mark.parametrize("pool", ["mlp", "modules"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (ROWS.to("meta"), "x: expected a tensor on device cpu as the layer, got meta"),
        (None, "x: expected a tensor, or one per source, got None"),
        ([[1.0] * 4], "x: expected a tensor, or one per source, got a list"),
        ({"rows": ROWS}, "x: expected a tensor, or one per source, got a dict"),
        ([], r"x: expected 1 input source\(s\), got 0"),
        (ROWS.to(torch.complex64), "x: expected floating point numbers, got torch.complex64"),
        (ROWS.int(), "x: expected floating point numbers, got torch.int32"),
        (ROWS[0], r"x: expected shape \[rows, 4\], got"),
        (torch.tensor(1.0), r"x: expected shape \[rows, 4\], got"),
        (torch.zeros(3, 5), r"x: expected shape \[rows, 4\], got \[3, 5\]"),
        (torch.zeros(3, 2, 4), r"x: expected 1 input source\(s\), got 2"),
    ],
)
def test_inputs(pool, x, message):
    with pytest.raises(ValueError, match=message):
        make(pool)(x)


def test_inputs_of_any_structure_are_on_the_layers_device_too():
    layer = MultiGateMixture(None, 1, [nn.Identity()], gate=TopKGate(4, 1, 1, k=1))
    with pytest.raises(ValueError, match="x: expected a tensor on device cpu as the layer"):
        layer({"rows": ROWS.to("meta")})
    with pytest.raises(ValueError, match="x: expected tensors, or tuples and dicts of them"):
        layer({"rows": None})


@pytest.mark.whole
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_modules_of_another_dtype(training, dtype):
    pool = ExpertPool([nn.Linear(4, 2) for _ in range(3)]).train(training)
    offsets = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    message = f"inputs: expected torch.float32 as the parameters of Linear, got {dtype}"
    for call in (lambda x: pool.dense([x]), lambda x: pool.grouped(x, offsets)):
        with pytest.raises(ValueError, match=message) as error:
            call(ROWS.to(dtype))
        assert isinstance(error.value.__cause__, RuntimeError)


class Casts(nn.Linear):
    """Takes any type."""

    def forward(self, input):
        """In its own."""
        return super().forward(input.to(self.weight.dtype))


def test_modules_may_cast_for_themselves_and_fail_for_themselves():
    assert ExpertPool([Casts(4, 2)]).dense([ROWS.double()])[0].dtype == torch.float32
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        ExpertPool([nn.Linear(5, 2)]).dense([ROWS])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MoE(4, MLPExperts(3, 4, [2]), capacity=1.25),
            r"capacity: expected None or a Capacity, as Capacity\(1.25\), got 1.25",
        ),
        (lambda: MoE(4, MLPExperts(3, 4, [2]), k=2.0), "k: expected a whole number, got 2.0"),
        (lambda: TopKGate(4, 1, 3, k=True), "k: expected a whole number, got True"),
        (lambda: DSelectKGate(4, 1, 3, k=1.0), "k: expected a whole number, got 1.0"),
        (
            lambda: MultiGateMixture(4, 1, MLPExperts(4, 4, [2]), expert_source=[0, 1, 1.5, 0]),
            r"expert_source: expected 4 source numbers .* got \[0, 1, 1.5, 0\]",
        ),
        (
            lambda: MultiGateMixture(4, 1, MLPExperts(4, 4, [2]), gate_source=[0.0]),
            r"gate_source: expected 1 source numbers .* got \[0.0\]",
        ),
    ],
)
def test_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_capacity_is_taken_as_it_is():
    layer = MoE(4, MLPExperts(3, 4, [2]), capacity=Capacity(2.0))
    assert layer.mixture.capacity == Capacity(2.0)
