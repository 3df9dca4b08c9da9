"""Gates and experts that came one after another: each computes what it computed alone."""

import pytest
import torch

from mmoe.mixture import (
    CosineGate,
    DSelectKGate,
    GateTraits,
    MixedExperts,
    MLPExperts,
    MultiGateMixture,
    NoisyTopKGate,
    Selection,
    SigmoidGate,
    SoftmaxGate,
    TopKGate,
)
from mmoe.mixture.gates.joined import GateGroup, JoinedGates
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.traits import traits_of

D = 12
OLD, NEW = GateGroup(places=[0, 2], num_experts=4), GateGroup(places=[1], num_experts=6)
KINDS = {
    "softmax": SoftmaxGate,
    "top_k": lambda *sizes: TopKGate(*sizes, k=2),
    "softmax before": lambda *sizes: TopKGate(*sizes, k=2, softmax="before"),
    "cosine": lambda *sizes: CosineGate(*sizes, k=2),
    "dselect_k": lambda *sizes: DSelectKGate(*sizes, k=2),
}


def visibility() -> torch.Tensor:
    seen_GE = torch.ones(3, 6, dtype=torch.bool)
    seen_GE[[0, 2], 4:] = False
    return seen_GE


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_decides_as_it_did_alone(kind):
    old, new = KINDS[kind](D, 2, 4), KINDS[kind](D, 1, 6)
    gate, x_BD = JoinedGates([old, new], [OLD, NEW]).eval(), torch.randn(50, D)
    found = gate([x_BD] * 3, visibility())
    alone = old([x_BD] * 2, torch.ones(2, 4, dtype=torch.bool))
    weights_BGE = found.as_weights(6)
    assert torch.equal(weights_BGE[:, [0, 2], :4], alone.as_weights(4))
    assert not weights_BGE[:, [0, 2], 4:].any()
    other = new([x_BD], torch.ones(1, 6, dtype=torch.bool))
    assert torch.equal(weights_BGE[:, [1]], other.as_weights(6))
    assert traits_of(gate, GateTraits).k == traits_of(old, GateTraits).k


def test_columns_are_read_once_and_losses_add_up():
    columns = [3, 0, 7]
    old = SoftmaxGate(3, 2, 4, z_loss=0.1)
    new = SoftmaxGate(D, 1, 6, z_loss=0.2)
    groups = [GateGroup(places=[0, 2], num_experts=4, columns=columns), NEW]
    gate, x_BD = JoinedGates([old, new], groups), torch.randn(9, D)
    found = gate([x_BD] * 3, visibility())
    mine = x_BD[:, columns]
    alone = old([mine, mine], torch.ones(2, 4, dtype=torch.bool))
    other = new([x_BD], torch.ones(1, 6, dtype=torch.bool))
    assert torch.equal(found.weights[:, 0, :4], alone.weights[:, 0])
    assert found.auxiliary_losses is not None
    torch.testing.assert_close(
        found.auxiliary_losses["z_loss"],
        alone.auxiliary_losses["z_loss"] + other.auxiliary_losses["z_loss"],
    )


def test_each_gate_is_in_one_group():
    gates = [SoftmaxGate(D, 2, 4), SoftmaxGate(D, 1, 6)]
    with pytest.raises(ValueError, match=r"groups: expected each gate once, got the places \[0, 2"):
        JoinedGates(gates, [OLD, GateGroup(places=[2], num_experts=6)])


@pytest.mark.whole
@pytest.mark.parametrize("execution", ["dense", "grouped"])
@pytest.mark.parametrize("norm", [None, "batch"])
def test_staged_experts_compute_what_each_pool_computes(execution, norm):
    columns = [5, 1, 2, 8]
    old, new = MLPExperts(4, 4, [7, 3], norm=norm), MLPExperts(2, D, [7, 3], norm=norm)
    gate = JoinedGates(
        [TopKGate(4, 2, 4, k=2), TopKGate(D, 1, 6, k=2)],
        [GateGroup(places=[0, 2], num_experts=4, columns=columns), NEW],
    )
    pool = MixedExperts([old, new], columns=[columns, None])
    settings = {"execution": execution}
    grown = MultiGateMixture(D, 3, pool, gate=gate, visibility=visibility(), **settings).eval()
    before = MultiGateMixture(4, 2, old, gate=gate.gates[0], **settings).eval()
    x_BD = torch.randn(40, D)
    out_BGO = grown(x_BD).out_BGO
    assert torch.equal(out_BGO[:, [0, 2]], before(x_BD[:, columns]).out_BGO)
    assert out_BGO[:, 1].any()
    assert [len(pool.part([0, 5])), len(pool.part([5]))] == [2, 1]
    part = pool.part([1, 4])
    y = part.dense([x_BD])
    assert torch.equal(y[0], old.dense([x_BD[:, columns]])[1])
    assert torch.equal(y[1], new.dense([x_BD])[0])


SELECTIONS = {
    "joint": {"shared_k": 1, "private_k": 1},
    "joint, capped": {"shared_k": 1, "private_k": 1, "budget": 2, "floor": 0},
    "budget": {"private_k": 2, "budget": 2},
    "budget that never binds": {"private_k": 2, "budget": 5},
}


@pytest.mark.whole
@pytest.mark.parametrize("kind", [TopKGate, CosineGate, SigmoidGate, NoisyTopKGate])
@pytest.mark.parametrize("how", SELECTIONS)
def test_gates_that_came_later_mix_what_the_first_chose(kind, how):
    """As if one module had all of them, the later one without a vote."""
    selection = Selection(votes=(1.0, 1.0, 0.0), **SELECTIONS[how])
    whole = kind(D, 3, 6, k=2, selection=selection).eval()
    old = kind(D, 2, 4, k=2, selection=Selection(**SELECTIONS[how]))
    new = kind(D, 1, 6, k=2, selection=selection)
    with torch.no_grad():
        for name, tensor in whole.state_dict().items():
            gates = tensor.shape[0] == 3  # else gates lie behind one another
            of_gate = tensor if gates else tensor.unflatten(0, (3, -1))
            for module, own in ((old, slice(0, 2)), (new, slice(2, 3))):
                there = module.state_dict()[name]
                mine = of_gate[own]
                if there.shape != mine.shape:  # fewer experts
                    dim = next(d for d, n in enumerate(there.shape) if n != mine.shape[d])
                    mine = mine.narrow(dim, 0, there.shape[dim])
                there.copy_(mine.reshape(there.shape))
    groups = [GateGroup(places=[0, 1], num_experts=4), GateGroup(places=[2], num_experts=6)]
    gate, x_BD = JoinedGates([old, new], groups).eval(), torch.randn(200, D)
    seen_GE = torch.ones(3, 6, dtype=torch.bool)
    seen_GE[:2, 4:] = False
    expected = whole([x_BD] * 3, seen_GE).as_weights(6)
    found = gate([x_BD] * 3, seen_GE)
    torch.testing.assert_close(found.as_weights(6), expected)
    assert traits_of(gate, GateTraits).most_pairs == selection.most_pairs(3)
    pairs_B = (found.as_weights(6) != 0).any(1).sum(1)
    assert pairs_B.max() <= selection.most_pairs(3)
    torch.testing.assert_close(gate.wanted([x_BD] * 3, seen_GE), whole.wanted([x_BD] * 3, seen_GE))
    asked_BG = torch.rand(200, 3) < 0.6  # only gates that a row asks for vote
    rows = Inputs(x_BR=x_BD, asked_BG=asked_BG)
    expected = whole([x_BD] * 3, seen_GE, rows).only_asked(asked_BG).as_weights(6)
    found = gate([x_BD] * 3, seen_GE, rows).only_asked(asked_BG).as_weights(6)
    torch.testing.assert_close(found, expected)


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_knows_the_domains_that_there_were(kind):
    """Rows of the third domain are of none to gates that know two, and of none to it before."""
    old, new = KINDS[kind](D, 2, 4), KINDS[kind](D, 1, 6)
    gate, x_BD = JoinedGates([old, new], [OLD, NEW]).eval(), torch.randn(50, D)
    gate.add_domains([2, 3])
    for name, own in gate.named_parameters():
        if ".own_" in name:
            torch.nn.init.normal_(own)
    codes_B = torch.randint(4, (50,)).int()
    rows = Inputs(x_BR=x_BD).in_domains(codes_B, 3)
    weights_BGE = gate([x_BD] * 3, visibility(), rows).as_weights(6)
    before = Inputs(x_BR=x_BD).in_domains(codes_B.clamp(max=2), 2)
    alone = old([x_BD] * 2, torch.ones(2, 4, dtype=torch.bool), before)
    assert torch.equal(weights_BGE[:, [0, 2], :4], alone.as_weights(4))
    other = new([x_BD], torch.ones(1, 6, dtype=torch.bool), rows)
    assert torch.equal(weights_BGE[:, [1]], other.as_weights(6))
