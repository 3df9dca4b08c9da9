"""Sigmoid gates and the bias that balances them."""

import copy

import pytest
import torch

from mmoe.mixture import SigmoidGate, update_biases

D, G, E = 5, 2, 4
VISIBILITY = torch.tensor([[True, True, True, False], [True, True, True, True]])


def scores_of(gate, x):
    return torch.einsum("bd,ged->bge", x, gate.logits.weights[0].detach()).sigmoid()


@pytest.mark.parametrize("normalize", [True, False])
def test_the_bias_chooses_and_the_score_weighs(normalize):
    torch.manual_seed(0)
    gate, x = SigmoidGate(D, G, E, k=2, normalize=normalize), torch.randn(40, D)
    gate.bias_GE.normal_()
    weights, experts, losses = gate([x] * G, VISIBILITY)
    assert losses == {}
    scores = scores_of(gate, x)
    moved = 0
    for b in range(40):
        for g in range(G):
            s = {e: float(scores[b, g, e]) for e in range(E) if VISIBILITY[g, e]}
            best = sorted(s, key=lambda e: -(s[e] + float(gate.bias_GE[g, e])))[:2]
            moved += set(best) != set(sorted(s, key=lambda e: -s[e])[:2])
            assert experts[b, g].tolist() == best
            total = sum(s[e] for e in best) if normalize else 1
            expected = torch.tensor([s[e] / total for e in best])
            torch.testing.assert_close(weights[b, g], expected)
    assert moved > 10, "the bias makes a difference"


def test_the_balance_loss_shares_out_the_scores_of_visible_experts_alone():
    torch.manual_seed(0)
    gate, x = SigmoidGate(D, G, E, k=2, balance_loss=0.5), torch.randn(40, D)
    _, experts, losses = gate([x] * G, VISIBILITY)
    scores, expected = scores_of(gate, x), 0.0
    for g in range(G):
        seen = [e for e in range(E) if VISIBILITY[g, e]]
        for e in seen:
            load = float((experts[:, g] == e).float().sum()) / (2 * 40)
            shares = [float(scores[b, g, e]) / float(scores[b, g, seen].sum()) for b in range(40)]
            expected += 0.5 * len(seen) * load * sum(shares) / 40 / G
    assert float(losses["balance_loss"].detach()) == pytest.approx(expected, rel=1e-5)


def test_the_update_goes_by_the_sign_of_the_load_error():
    gate = SigmoidGate(D, G, E, k=1, bias_speed=0.5)
    gate.seen_GE.copy_(VISIBILITY)
    gate.load_GE.copy_(torch.tensor([[3, 1, 2, 0], [9, 1, 1, 1]]))
    gate.update_bias()
    assert gate.bias_GE.tolist() == [[-0.5, 0.5, 0.0, 0.0], [-0.5, 0.5, 0.5, 0.5]]
    assert gate.load_GE.sum() == 0
    gate.update_bias()
    assert gate.bias_GE.tolist() == [[-0.5, 0.5, 0.0, 0.0], [-0.5, 0.5, 0.5, 0.5]], "no new load"


def test_all_gates_together():
    """Gate 0 overloads expert 0 and gate 1 leaves it alone: together it is even."""
    visible = torch.ones(2, 2, dtype=torch.bool)
    gate = SigmoidGate(D, 2, 2, k=1, balance_scope="all", bias_speed=1.0)
    gate.seen_GE.copy_(visible)
    gate.load_GE.copy_(torch.tensor([[10, 0], [0, 10]]))
    gate.update_bias()
    assert gate.bias_GE.tolist() == [[0, 0], [0, 0]]
    gate.load_GE.copy_(torch.tensor([[10, 0], [2, 8]]))
    gate.update_bias()
    assert gate.bias_GE.tolist() == [[-1, 1], [-1, 1]]


def test_accumulated_micro_batches_count_as_one_batch():
    torch.manual_seed(0)
    whole, x = SigmoidGate(D, G, E, k=2), torch.randn(64, D)
    parts = copy.deepcopy(whole)
    picks = whole([x] * G, VISIBILITY).experts
    micro = [parts([part] * G, VISIBILITY).experts for part in x.split(16)]
    assert torch.equal(torch.cat(micro), picks)
    assert torch.equal(whole.load_GE, parts.load_GE)
    for gate in (whole, parts):
        update_biases(torch.nn.Sequential(torch.nn.Linear(2, 2), gate))
    assert torch.equal(whole.bias_GE, parts.bias_GE)
    assert whole.bias_GE.abs().sum() > 0


def test_only_training_counts():
    gate, x = SigmoidGate(D, G, E, k=2).eval(), torch.randn(64, D)
    gate([x] * G, VISIBILITY)
    assert gate.load_GE.sum() == 0
    update_biases(gate)
    assert (gate.bias_GE == 0).all()


def test_checkpointed_activations_do_not_change_the_update():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    plain, x = SigmoidGate(D, G, E, k=2), torch.randn(64, D, requires_grad=True)
    saved = copy.deepcopy(plain)
    plain([x] * G, VISIBILITY).weights.square().sum().backward()
    weights = checkpoint(lambda x: saved([x] * G, VISIBILITY).weights, x, use_reentrant=False)
    weights.square().sum().backward()
    for gate in (plain, saved):
        gate.update_bias()
    assert torch.equal(plain.bias_GE, saved.bias_GE)
    parameters = zip(plain.parameters(), saved.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in parameters)


def test_the_bias_is_saved_and_counts_are_not():
    gate = SigmoidGate(D, G, E, k=2)
    gate([torch.randn(9, D)] * G, VISIBILITY)
    gate.update_bias()
    state = gate.state_dict()
    assert set(state) == {"logits.weights.0", "bias_GE"}
    other = SigmoidGate(D, G, E, k=2)
    other.load_state_dict(state)
    assert torch.equal(other.bias_GE, gate.bias_GE)


def test_the_bias_stays_in_fp32():
    """In bf16 a bias of 1 could not grow by 0.001."""
    gate = SigmoidGate(D, G, E, k=2)
    gate.bias_GE.fill_(1.0)
    gate.bfloat16()
    assert (gate.bias_GE.dtype, gate.logits.weights[0].dtype) == (torch.float32, torch.bfloat16)
    gate([torch.randn(9, D, dtype=torch.bfloat16)] * G, VISIBILITY)
    gate.update_bias()
    assert ((gate.bias_GE - 1).abs() > 5e-4).any()
    assert gate.to("meta").bias_GE.device.type == "meta"
    assert torch.nn.ModuleList([SigmoidGate(D, G, E, k=2)]).half()[0].bias_GE.dtype == torch.float32


def test_very_small_scores_keep_their_share():
    gate = SigmoidGate(1, 1, 2, k=2)
    with torch.no_grad():
        gate.logits.weights[0].copy_(torch.tensor([[[-60.0], [-61.0]]]))
    weights = gate([torch.ones(1, 1)], torch.ones(1, 2, dtype=torch.bool)).weights
    expected = torch.tensor([0.0, -1.0]).softmax(-1)
    torch.testing.assert_close(weights.flatten(), expected)


def test_wrong_settings():
    with pytest.raises(ValueError, match="bias_speed: expected a finite number of 0 or more"):
        SigmoidGate(D, G, E, k=2, bias_speed=-0.1)
    with pytest.raises(ValueError, match="k: expected 1 to 4"):
        SigmoidGate(D, G, E, k=0)
