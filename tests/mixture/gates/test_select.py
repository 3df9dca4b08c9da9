"""Gates that decide together, of all kinds that pick: bounds, promises, gradients, losses."""

import pytest
import torch

from mmoe.mixture import (
    Capacity,
    CosineGate,
    MLPExperts,
    MultiGateMixture,
    NoisyTopKGate,
    Selection,
    SigmoidGate,
    TopKGate,
)
from mmoe.mixture.dispatcher import plan_routes
from mmoe.mixture.gates.losses import balance, count_pairs, count_picks
from mmoe.mixture.gates.select import Selector
from mmoe.mixture.inputs import Inputs
from mmoe.ops import joint_select, topk_gate

GATES = [TopKGate, NoisyTopKGate, CosineGate, SigmoidGate]
JOINT = Selection(shared_k=2, private_k=1)
BUDGET = Selection(private_k=3, budget=4)
CAPPED = Selection(shared_k=1, private_k=2, budget=4)
SELECTIONS = [JOINT, BUDGET, CAPPED]
gates = pytest.mark.parametrize("kind", GATES)
selections = pytest.mark.parametrize(
    "selection", SELECTIONS, ids=["joint", "budget", "joint within a budget"]
)
D, G, E = 6, 3, 12
ALL = torch.ones(G, E, dtype=torch.bool)
# As in CGC: two experts of each gate, and six that all see
OWN = torch.tensor([[e // 2 == g or e >= 6 for e in range(E)] for g in range(G)])


def make(kind, selection, **options):
    torch.manual_seed(0)
    gate = kind(D, G, E, k=3, selection=selection, **options)
    for parameter in gate.parameters():  # experts that gates agree on, and others
        torch.nn.init.normal_(parameter)
    return gate.eval()


def rows(count=40, dtype=torch.float32):
    return torch.randn(count, D, dtype=dtype, generator=torch.Generator().manual_seed(1))


@gates
@selections
@pytest.mark.parametrize("visible", [ALL, OWN], ids=["all", "own and shared"])
def test_picks_are_those_of_what_each_gate_wants(kind, selection, visible):
    gate, x = make(kind, selection), rows()

    weights, experts, _ = gate([x] * G, visible)

    wanted = gate.wanted([x] * G, visible)
    if kind is SigmoidGate:  # it is scores that are picked by
        wanted = gate.logits([x] * G).sigmoid() * visible
    picked = joint_select(
        wanted, visible, **{k: getattr(selection, k) for k in ("shared_k", "private_k", "budget")}
    )
    found = torch.zeros_like(picked, dtype=torch.int32)
    found.scatter_add_(2, experts.clamp(min=0).long(), (experts >= 0).int())
    assert torch.equal(found, picked.int())
    assert int(picked.any(1).sum(1).max()) <= selection.most_pairs(G)
    torch.testing.assert_close(weights.sum(2), torch.ones(len(x), G))
    assert (weights.diff(dim=2) <= 1e-6).all()  # best first


@pytest.mark.parametrize("softmax", ["after", "before"])
def test_weights_are_a_softmax_over_the_picks_or_over_all(softmax):
    gate, x = make(TopKGate, JOINT, softmax=softmax), rows()
    weights, experts, _ = gate([x] * G, ALL)

    logits = gate.logits([x] * G)
    at = experts.long()
    expected = logits.gather(2, at).softmax(2)
    if softmax == "before":
        expected = logits.softmax(2).gather(2, at)
    torch.testing.assert_close(weights, expected)


@gates
def test_a_wide_budget_is_every_gate_by_itself_to_the_bit(kind):
    alone, together = make(kind, None), make(kind, Selection(private_k=3, budget=9))

    x = rows(60)

    for first, second in zip(alone([x] * G, ALL)[:2], together([x] * G, ALL)[:2], strict=True):
        assert torch.equal(first, second)


@gates
def test_training_steps_move_every_part(kind):
    gate = make(kind, JOINT, balance_loss=0.1, dropout=0.2).train()
    layer = MultiGateMixture(D, G, MLPExperts(E, D, [8]), gate=gate, capacity=Capacity(1.0))

    out = layer(rows(200), return_gates=True)
    torch.testing.assert_close(out.gates_wanted_BGE.sum(2), torch.ones(200, G))
    (out.out_BGO.square().sum() + sum(out.auxiliary_losses.values())).backward()

    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_gates_without_a_vote_change_nobodys_picks():
    """A gate that comes later: what the others pick stays the same bits."""
    before = make(TopKGate, BUDGET)
    after = TopKGate(
        D, G + 1, E, k=3, selection=Selection(private_k=3, budget=4, votes=[1, 1, 1, 0])
    )
    with torch.no_grad():
        after.logits.weights[0][:G].copy_(before.logits.weights[0])
    x = rows()

    old = before([x] * G, ALL)
    new = after.eval()([x] * (G + 1), torch.ones(G + 1, E, dtype=torch.bool))

    assert torch.equal(new.weights[:, :G], old.weights)
    assert torch.equal(new.experts[:, :G], old.experts)
    assert after.selection.most_pairs(G + 1) == 5
    assert (new.weights[:, G].sum(1) - 1).abs().max() < 1e-6
    firsts = after.wanted([x] * (G + 1), torch.ones(G + 1, E, dtype=torch.bool))[:, G].argmax(1)
    assert (new.experts[:, G] == firsts.unsqueeze(1)).any(1).all()


@pytest.mark.parametrize("floor", [0, 1])
@pytest.mark.parametrize(("shared_k", "private_k"), [(0, 3), (1, 2)])
def test_a_budget_that_its_voters_fit_in_stays_one_for_gates_without_a_vote(
    shared_k, private_k, floor
):
    numbers = {"shared_k": shared_k, "private_k": private_k, "floor": floor}
    budget = shared_k + 2 * private_k  # room for all that two voters pick, not for three gates
    logits = torch.randn(500, 3, E, generator=torch.Generator().manual_seed(2))
    own, added = Selection(budget=budget, **numbers), [1, 1, 0]
    later = Selection(budget=budget, votes=added, **numbers)
    before = Selector(2, E, k=3, selection=own)(logits[:, :2], ALL[:2])
    select = Selector(3, E, k=3, selection=later)

    after = select(logits, ALL)

    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[:, :2], old)
    wanted = logits.softmax(2)
    picked = select.among(torch.zeros_like(logits), wanted, ALL) == 0
    beyond = picked[:, 2] & ~picked[:, :2].any(1)
    first = torch.nn.functional.one_hot(logits[:, 2].argmax(1), E).bool()
    assert not (beyond & ~first).any()
    assert not floor or bool(picked[:, 2][first].all())
    assert int(picked.any(1).sum(1).max()) <= later.most_pairs(3) <= budget + floor
    # A row that asks for no voter: what it asks for decides within the budget
    asked = torch.tensor([[False, False, True]]).expand(500, 3)
    alone = select.among(torch.zeros_like(logits), wanted, ALL, asked) == 0
    assert torch.equal(alone[:, 2:], joint_select(wanted[:, 2:], ALL[:1], private_k=3))


def test_only_gates_that_a_row_asks_for_decide():
    gate, x = make(TopKGate, JOINT), rows()
    asked = torch.zeros(len(x), G, dtype=torch.bool)
    asked[:, 1] = True

    _, experts, _ = gate([x] * G, ALL, Inputs(x_BR=x, asked_BG=asked))

    alone = topk_gate(gate.logits([x] * G), ALL, 3)[1]
    assert torch.equal(experts[:, 1], alone[:, 1])
    assert (experts[:, [0, 2]] == -1).all()


def test_how_much_a_gate_has_to_say():
    # Expert 1 is everybody's second choice, and has most of all votes
    wanted = torch.tensor([[[0.56, 0.44, 0], [0, 0.44, 0.56], [0, 0.44, 0.56]]]).log()
    visible = torch.ones(3, 3, dtype=torch.bool)

    def shared(votes):
        selection = Selection(shared_k=1, private_k=0, votes=votes)
        return Selector(3, 3, k=1, selection=selection)(wanted, visible)[1].flatten().tolist()

    assert shared(None) == shared([1, 1, 1]) == [1, 1, 1]
    assert shared([0, 1, 0]) == [-1, 2, 2]  # the first gate does not want it at all
    assert shared([9, 1, 1]) == [0, -1, -1]


def test_balance_counts_distinct_pairs():
    gate = make(TopKGate, JOINT, balance_loss=1.0, balance_scope="all").train()
    x = rows()
    _, experts, losses = gate([x] * G, ALL)

    pairs = count_pairs(experts, E)
    routes = plan_routes(experts, E)
    torch.testing.assert_close(pairs.sum(0), routes.offsets_E1.diff().double())
    assert int(count_picks(experts, E).sum()) > len(routes.rows_P)
    importance = gate.wanted([x] * G, ALL).sum(0)
    expected = balance(pairs, importance, ALL, "all")
    torch.testing.assert_close(losses["balance_loss"], expected)


def test_a_bias_evens_out_the_rows_that_experts_compute():
    gate, x = make(SigmoidGate, JOINT, bias_speed=0.5).train(), rows()
    _, experts, _ = gate([x] * G, OWN)

    computed = plan_routes(experts, E).offsets_E1.diff()
    assert torch.equal(gate.load_GE, computed.long() * OWN)
    gate.update_bias()
    assert gate.bias_GE[0, computed.argmax()] == -0.5 or not OWN[0, computed.argmax()]


def test_the_bound_is_known_where_pairs_are_not_read():
    gate = make(TopKGate, JOINT)
    layer = MultiGateMixture(D, G, MLPExperts(E, D, [8]), gate=gate)
    assert layer.policy.most_pairs == 5
    assert (layer.policy.share or 1) <= 5 / E
    alone = MultiGateMixture(D, G, MLPExperts(E, D, [8]), gate=make(TopKGate, None))
    assert (layer.policy.share or 1) < (alone.policy.share or 0)

    def places(experts):
        return plan_routes(experts, E, most_pairs=5).rows_P.new_ones(1)

    experts = gate([rows()] * G, ALL).experts
    with torch.device("meta"):
        plan = plan_routes(experts.to("meta"), E, most_pairs=layer.policy.most_pairs)
    assert len(plan.rows_P) == 40 * 5
    assert places(experts) == 1
    with pytest.raises(ValueError, match="gate: expected at most 2 distinct experts for a row"):
        plan_routes(experts, E, most_pairs=2)


@pytest.mark.parametrize(
    ("k", "experts", "numbers", "message"),
    [
        (
            2,
            E,
            {"shared_k": 2, "private_k": 1},
            r"k: expected 3, shared_k \+ private_k of the selec",
        ),
        (
            4,
            4,
            {"shared_k": 3, "private_k": 2},
            r"shared_k: expected shared_k \+ private_k from 1 t",
        ),
        (3, E, {"private_k": 3, "budget": 2}, "budget: expected 3 or more, one for the first cho"),
        (3, E, {"private_k": 3}, "shared_k: expected 1 or more where there is no budget"),
        (3, E, {"votes": [1, -1, 0]}, "votes: expected 3 finite numbers from 0 on"),
        (3, E, {"votes": [0, 0, 0]}, "votes: expected one above 0"),
    ],
)
def test_what_cannot_be_is_refused(k, experts, numbers, message):
    both = {"shared_k": 1, "private_k": 2} if "votes" in numbers else {}
    with pytest.raises(ValueError, match=f"^{message}"):
        TopKGate(D, G, experts, k=k, selection=Selection(**both, **numbers))
