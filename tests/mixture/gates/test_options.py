"""Options that all learned gates share: temperature, dropout, coefficients."""

import pytest
import torch

from mmoe.mixture import CosineGate, DSelectKGate, SoftmaxGate, StaticGate, SwitchGate, TopKGate
from mmoe.mixture.gates.learned import GateSettings
from mmoe.mixture.gates.losses import balance, z_loss

D, G, E = 5, 2, 4
VISIBILITY = torch.tensor([[True, True, True, False], [True, True, True, True]])


def with_same_weights(gate, other):
    other.load_state_dict(gate.state_dict())
    return other


def test_temperature_divides_the_logits():
    torch.manual_seed(0)
    gate, x = SoftmaxGate(D, G, E), torch.randn(9, D)
    cold = with_same_weights(gate, SoftmaxGate(D, G, E, temperature=0.5))
    sharper = gate([x] * G, VISIBILITY).weights.square()
    expected = sharper / sharper.sum(-1, keepdim=True)
    torch.testing.assert_close(cold([x] * G, VISIBILITY).weights, expected)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_renormalises_what_it_leaves(training):
    torch.manual_seed(0)
    gate = SoftmaxGate(D, G, E, dropout=0.4).train(training)
    x = torch.randn(4_000, D)
    whole = with_same_weights(gate, SoftmaxGate(D, G, E))([x] * G, VISIBILITY).weights
    weights = gate([x] * G, VISIBILITY).weights
    if not training:
        torch.testing.assert_close(weights, whole)
        return
    left = whole * (weights > 0)
    torch.testing.assert_close(weights, left / left.sum(-1, keepdim=True))
    # Gate 0 sees 3 experts: all are dropped with 0.4³, of which one then comes back.
    for g, seen in ((0, 3), (1, 4)):
        share = float((weights[:, g] == 0)[:, VISIBILITY[g]].float().mean())
        assert share == pytest.approx(0.4 - 0.4**seen / seen, abs=0.02)
    assert (weights.sum(-1) > 0.999).all(), "never all of them"
    mask = (weights > 0).float()
    agree = float((mask[:, 0, :3] == mask[:, 1, :3]).float().mean())
    assert agree < 0.7, "gates draw apart"


def test_dropout_lets_a_top_k_gate_pick_others():
    torch.manual_seed(0)
    gate, x = TopKGate(D, G, E, k=2, dropout=0.5), torch.randn(2_000, D)
    first = with_same_weights(gate, TopKGate(D, G, E, k=2))([x] * G, VISIBILITY).experts[..., 0]
    weights, experts, _ = gate([x] * G, VISIBILITY)
    moved = float((experts[..., 0] != first).float().mean())
    assert moved == pytest.approx(0.5, abs=0.05)
    used = experts >= 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(2_000, G))
    assert used[..., 0].all(), "one expert always stays"
    assert not used[..., 1].all(), "a second one may not"


def test_dropped_weights_of_a_sparse_gate_go_to_the_others():
    torch.manual_seed(0)
    weights = torch.tensor([[[0.5, 0.3, 0.0, 0.0]]]).expand(3_000, 1, 4)
    left = GateSettings(dropout=0.3).drop_weights(weights, training=True)
    torch.testing.assert_close(left.sum(-1), torch.full((3_000, 1), 0.8))
    assert (left[..., 2:] == 0).all()
    both = float((left[..., :2] > 0).all(-1).float().mean())
    assert both == pytest.approx(0.7**2, abs=0.03)


def test_losses_are_scaled_and_named():
    torch.manual_seed(0)
    options = {"z_loss": 0.5, "balance_loss": 2.0, "balance_scope": "all"}
    gate, x = TopKGate(D, G, E, k=2, **options), torch.randn(30, D)
    _, experts, losses = gate([x] * G, VISIBILITY)
    logits = gate.logits([x] * G)
    importance = logits.masked_fill(~VISIBILITY, -torch.inf).softmax(-1).sum(0)
    counts = [[int((experts[:, g] == e).sum()) for e in range(E)] for g in range(G)]
    expected = balance(torch.tensor(counts), importance, VISIBILITY, "all")
    torch.testing.assert_close(losses["balance_loss"], 2 * expected)
    torch.testing.assert_close(losses["z_loss"], 0.5 * z_loss(logits, VISIBILITY))


def test_coefficients_may_change_between_steps():
    gate, x = SoftmaxGate(D, G, E, z_loss=0.5), torch.randn(30, D)
    before = gate([x] * G, VISIBILITY).auxiliary_losses["z_loss"]
    gate.options.z_loss = 0.25
    after = gate([x] * G, VISIBILITY).auxiliary_losses["z_loss"]
    torch.testing.assert_close(after, before / 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature: expected a number above 0, got 0"),
        ({"temperature": float("nan")}, "temperature: expected a number above 0, got nan"),
        ({"dropout": 1.0}, r"dropout: expected a number in \[0, 1\), got 1"),
        ({"z_loss": -1.0}, "z_loss: expected a finite number of 0 or more, got -1"),
        ({"balance_loss": float("inf")}, "balance_loss: expected a finite number .*, got inf"),
        ({"balance_scope": "task"}, "balance_scope: expected 'gate' or 'all', got 'task'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxGate(D, G, E, **options)


def test_unknown_option():
    message = "drop_out: SoftmaxGate has no such option; did you mean dropout. It has hidden, temp"
    with pytest.raises(TypeError, match=message):
        SoftmaxGate(D, G, E, drop_out=0.1)
    with pytest.raises(
        TypeError, match=r"balance: TopKGate .* did you mean balance_loss. It has k,"
    ):
        TopKGate(D, G, E, k=2, balance=0.1)
    with pytest.raises(
        TypeError, match="softmx: TopKGate has no such option; did you mean softmax"
    ):
        TopKGate(D, G, E, k=2, softmx="before")
    with pytest.raises(TypeError, match="k: SoftmaxGate has no such option; it has hidden"):
        SoftmaxGate(D, G, E, k=2)


@pytest.mark.parametrize(
    ("gate", "shown"),
    [
        (SoftmaxGate(D, G, E, hidden=[], dropout=0.0), ""),
        (TopKGate(D, G, E, k=2), "k=2"),
        (TopKGate(D, G, E, k=3, softmax="before", hidden=[7]), "k=3, softmax=before, hidden=[7]"),
        (SwitchGate(D, G, E, jitter=0.1), "k=1, jitter=0.1, balance_loss=0.01"),
        (
            CosineGate(D, G, E, k=1, projection_dim=3, z_loss=1.0),
            "k=1, projection_dim=3, z_loss=1.0",
        ),
        (DSelectKGate(None, G, E, k=2, balance_scope="all"), "k=2, balance_scope=all"),
        (StaticGate(G, E), ""),
    ],
)
def test_what_print_shows(gate, shown):
    assert gate.extra_repr() == shown
    assert shown in repr(gate)
