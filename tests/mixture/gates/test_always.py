"""Experts of every row beside picks among the others."""

import pytest
import torch

from mmoe.mixture import (
    CosineGate,
    MLPExperts,
    MultiGateMixture,
    NoisyTopKGate,
    Selection,
    SigmoidGate,
    SoftmaxGate,
    TopKGate,
)

D, G, E, ALWAYS = 7, 3, 9, 3
ALL = torch.ones(G, E, dtype=torch.bool)
KINDS = (TopKGate, NoisyTopKGate, CosineGate, SigmoidGate)
SELECTIONS = {
    "alone": (2, None),
    "joint": (3, Selection(shared_k=2, private_k=1)),
    "budget": (2, Selection(private_k=2, budget=4)),
}


def make(kind, how="alone", **options):
    torch.manual_seed(0)
    k, selection = SELECTIONS[how]
    options = {"always": ALWAYS, **options}
    return kind(D, G, E, k=k, selection=selection, **options).eval()


@pytest.mark.parametrize("how", SELECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_softmax_gate_of_the_first_beside_a_gate_of_the_others(kind, how):
    gate, others = make(kind, how, routed_start=0.25), make(kind, how, always=0)
    others.load_state_dict(gate.state_dict(), strict=False)
    x_BD = torch.randn(40, D)
    routed_GE = ALL.clone()
    routed_GE[:, :ALWAYS] = False

    weights_BGK, experts_BGK, _ = gate([x_BD] * G, ALL)
    picked = others([x_BD] * G, routed_GE)

    logits_BGE = gate.scores([x_BD] * G, None)
    assert torch.equal(experts_BGK[..., ALWAYS:], picked.experts)
    assert (experts_BGK[..., :ALWAYS] == torch.arange(ALWAYS)).all()
    torch.testing.assert_close(weights_BGK[..., ALWAYS:], 0.25 * picked.weights)
    torch.testing.assert_close(weights_BGK[..., :ALWAYS], logits_BGE[..., :ALWAYS].softmax(2))


@pytest.mark.parametrize("how", SELECTIONS)
@pytest.mark.parametrize("execution", ["dense", "grouped"])
def test_at_0_a_layer_is_the_dense_one_of_the_first_experts(how, execution):
    gate = make(TopKGate, how, routed_start=0)
    large = MultiGateMixture(
        D, G, MLPExperts(E, D, [8]), gate=gate, execution=execution, capacity=None
    )
    dense = MultiGateMixture(D, G, MLPExperts(ALWAYS, D, [8]), gate=SoftmaxGate(D, G, ALWAYS))
    with torch.no_grad():
        dense.gate.logits.weights[0].copy_(gate.logits.weights[0][:, :ALWAYS])
        for own, all_experts in zip(
            dense.experts.parameters(), large.experts.parameters(), strict=True
        ):
            own.copy_(all_experts[:ALWAYS])
    x_BD = torch.randn(40, D)

    torch.testing.assert_close(large(x_BD).out_BGO, dense(x_BD).out_BGO)


def test_the_share_of_picks_is_not_below_0_and_comes_back():
    gate = make(TopKGate)
    layer = MultiGateMixture(D, G, MLPExperts(E, D, [8]), gate=gate)
    with torch.no_grad():
        gate.routed_share_G.fill_(-0.5)

    weights_BGK = gate([torch.randn(40, D)] * G, ALL).weights
    layer.train()(torch.randn(40, D)).out_BGO.sum().backward()

    assert (weights_BGK[..., ALWAYS:] == 0).all()
    assert (gate.routed_share_G.grad != 0).all()


def test_picks_are_balanced_among_the_others_alone():
    gate = make(TopKGate, balance_loss=1.0).train()
    even = gate([torch.zeros(40, D)] * G, ALL).auxiliary_losses["balance_loss"]

    # Equal logits: two of six get a load of 1/2 each, and an importance of 1/6
    torch.testing.assert_close(even, torch.tensor(1.0))
    assert gate.wanted([torch.zeros(1, D)] * G, ALL)[..., :ALWAYS].sum() == 0


def test_an_expert_that_a_gate_does_not_see_is_none_of_its_rows():
    seen_GE = ALL.clone()
    seen_GE[0, 1] = False

    weights_BGK, experts_BGK, _ = make(TopKGate)([torch.randn(5, D)] * G, seen_GE)

    assert (experts_BGK[:, 0, 1] == -1).all() and (weights_BGK[:, 0, 1] == 0).all()
    torch.testing.assert_close(weights_BGK[..., :ALWAYS].sum(2), torch.ones(5, G))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: TopKGate(D, G, E, k=2, always=8), "always: expected 0 to 7"),
        (lambda: TopKGate(D, G, E, k=2, always=-1), "always: expected 0 to 7"),
        (lambda: SoftmaxGate(D, G, E, always=1), "as these gates pick none"),
        (lambda: TopKGate(D, G, E, k=2, always=1, routed_start=-1), "routed_start: expected"),
    ],
)
def test_what_cannot_be_is_refused(build, said):
    with pytest.raises(ValueError, match=said):
        build()
