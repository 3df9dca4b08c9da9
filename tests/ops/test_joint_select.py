"""What the gates of a row choose together: against the rules word for word, and the best set."""

from itertools import combinations

import pytest
import torch

from mmoe.ops import joint_select, reference

SETTINGS = {
    "joint": {"shared_k": 2, "private_k": 1},
    "joint by the largest": {"shared_k": 2, "private_k": 1, "aggregate": "max"},
    "shared alone": {"shared_k": 2, "private_k": 0},
    "budget": {"private_k": 2, "budget": 4},
    "budget without a floor": {"private_k": 2, "budget": 2, "floor": 0},
    "joint within a budget": {"shared_k": 1, "private_k": 2, "budget": 4},
    "budget of fewer than picks": {"private_k": 3, "budget": 2, "floor": 0},
}
settings = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def inputs(case, dtype=torch.float32):
    """Scores in steps of an eighth: many are equal, and their sums exact in every order."""
    scores_BGE = (case.random(case.B, case.G, case.E, seed=1) * 4).round() / 8
    visibility_GE = case.random(case.G, case.E, seed=2) > -0.5
    visibility_GE[:, :1] = True
    return scores_BGE.to(dtype), visibility_GE


def fitting(setting, case):
    """Fewer picks where there are fewer experts."""
    shared_k = min(setting.get("shared_k", 0), case.E)
    private_k = min(setting["private_k"], case.E - shared_k)
    return setting | {"shared_k": shared_k, "private_k": private_k}


def by_hand(scores, visible, votes, asked, s):
    """The rules for one row, word for word: a set of experts for each gate."""
    G, E = len(scores), len(scores[0])
    budget, floor = s.get("budget"), s.get("floor", 1)
    shared_k, private_k = s.get("shared_k", 0), s["private_k"]

    def p(g, e):
        return max(scores[g][e], 0.0) if asked[g] and visible[g][e] else 0.0

    voters = [g for g in range(G) if asked[g] and votes[g]]
    voters = voters or [g for g in range(G) if asked[g]]

    def together(e):
        if not voters or not all(visible[g][e] for g in voters):
            return 0.0
        of_each = [p(g, e) for g in voters]
        return max(of_each) if s.get("aggregate") == "max" else sum(of_each)

    def first(g):
        wanted = [e for e in range(E) if p(g, e) > 0]
        return min(wanted, key=lambda e: (-p(g, e), e), default=None)

    chosen, shared = set(), []
    if budget and floor:
        for g in voters:
            if first(g) is not None and (len(chosen) < budget or first(g) in chosen):
                chosen.add(first(g))
    for e in sorted(range(E), key=lambda e: (-together(e), e)):
        room = not budget or len(chosen) < budget or e in chosen
        if together(e) > 0 and room and len(shared) < shared_k:
            shared.append(e)
            chosen.add(e)

    def kept(g, experts):
        return sorted((p(g, e) for e in experts if e not in shared), reverse=True)[:private_k]

    def value(experts):
        return sum(sum(kept(g, experts)) for g in voters)

    while budget and len(chosen) < budget and len(chosen) < E:
        gains = {e: value(chosen | {e}) - value(chosen) for e in range(E) if e not in chosen}
        best = min(gains, key=lambda e: (-gains[e], e))
        if gains[best] <= 0:
            break
        chosen.add(best)

    picked = []
    for g in range(G):
        pool = set(range(E)) if not budget else set(chosen)
        if budget and floor and g not in voters and first(g) is not None:
            pool.add(first(g))
        own = sorted((e for e in pool - set(shared) if p(g, e) > 0), key=lambda e: (-p(g, e), e))
        picked.append({e for e in shared if p(g, e) > 0} | set(own[:private_k]))
    return picked


def whom(case):
    """Some gates have no vote, some rows ask for few gates."""
    votes_G = case.random(case.G, seed=3) > -0.3
    return votes_G, case.random(case.B, case.G, seed=4) > -0.6


def as_sets(picked_BGE):
    return [[set(gate.nonzero().flatten().tolist()) for gate in row] for row in picked_BGE]


@settings
@pytest.mark.parametrize("some", [False, True], ids=["all vote", "some vote"])
@pytest.mark.parametrize("function", ["operator", "reference"])
def test_is_the_rules(case, setting, some, function):
    if case.B > 100:
        pytest.skip("slow in Python; the reference is compared below")
    scores_BGE, visibility_GE = inputs(case)
    s = fitting(setting, case)
    votes_G, asked_BG = whom(case) if some else (torch.ones(case.G, dtype=torch.bool), None)

    if function == "operator":
        actual = joint_select(scores_BGE, visibility_GE, votes_G=votes_G, asked_BG=asked_BG, **s)
    else:
        numbers = s["shared_k"], s["private_k"], s.get("budget", 0), s.get("floor", 1)
        largest = s.get("aggregate") == "max"
        arguments = scores_BGE, visibility_GE, votes_G, asked_BG, *numbers, largest
        actual = reference.joint_select(*arguments)

    asked = torch.ones(case.B, case.G).bool() if asked_BG is None else asked_BG
    expected = [
        by_hand(row, visibility_GE.tolist(), votes_G.tolist(), asks, s)
        for row, asks in zip(scores_BGE.tolist(), asked.tolist(), strict=True)
    ]
    assert actual.dtype == torch.bool
    assert as_sets(actual) == expected


@settings
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("E", [3, 16, 17, 64, 150])
def test_operator_equals_reference_on_probabilities(E, dtype, setting):
    """Ends of vectors; sums are taken in one order, so that near ties go the same way."""
    generator = torch.Generator().manual_seed(E)
    scores_BGE = torch.randn(200, 5, E, generator=generator, dtype=dtype).mul(2).softmax(-1)
    visibility_GE = torch.rand(5, E, generator=generator) < 0.8
    asked_BG = torch.rand(200, 5, generator=generator) < 0.8
    votes_G = torch.tensor([True, False, True, True, True])
    s = {"shared_k": 0, "budget": None, "floor": 1, "aggregate": "mean"} | setting

    actual = joint_select(scores_BGE, visibility_GE, votes_G=votes_G, asked_BG=asked_BG, **s)

    numbers = s["shared_k"], s["private_k"], s["budget"] or 0, s["floor"], s["aggregate"] == "max"
    expected = reference.joint_select(scores_BGE, visibility_GE, votes_G, asked_BG, *numbers)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_the_set_is_within_1_less_1_over_e_of_the_best(budget):
    """And mostly it is the best: every set of so many experts was tried."""
    generator = torch.Generator().manual_seed(budget)
    p_BGE = torch.randn(60, 3, 7, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
    visible = torch.ones(3, 7, dtype=torch.bool)

    def kept(experts_BE):
        inside_BGE = p_BGE.masked_fill(~experts_BE.unsqueeze(1), 0)
        return inside_BGE.topk(2).values.sum((1, 2))

    picked = joint_select(p_BGE, visible, private_k=2, budget=budget, floor=0)

    sets = [torch.zeros(7).bool().index_fill(0, torch.tensor(s), True)
            for s in combinations(range(7), budget)]  # fmt: skip
    best = torch.stack([kept(s.expand(60, -1)) for s in sets]).amax(0)
    share = torch.where(picked, p_BGE, 0).sum((1, 2)) / best
    assert share.min() >= 1 - 1 / torch.e
    assert share.max() <= 1 + 1e-12
    assert (share > 1 - 1e-12).double().mean() > 0.7


def test_votes_of_others_do_not_change_with_a_gate_that_has_none(usual):
    scores_BGE = usual.random(usual.B, 3, 9, seed=7).softmax(-1)
    visible, votes = torch.ones(3, 9, dtype=torch.bool), torch.tensor([True, True, False])
    for setting in ({"shared_k": 2, "private_k": 1}, {"private_k": 3, "budget": 4}):
        before = joint_select(scores_BGE[:, :2], visible[:2], **setting)

        after = joint_select(scores_BGE, visible, votes_G=votes, **setting)

        assert torch.equal(after[:, :2], before)
        assert (after[:, 2].sum(1) == setting.get("shared_k", 0) + setting["private_k"]).all()
        assert after[:, 2].gather(1, scores_BGE[:, 2].argmax(1, keepdim=True)).all()


def test_what_is_nan_or_not_above_0_is_not_picked():
    nan = float("nan")
    scores_BGE = torch.tensor([[[nan, 0.5, 0.0, 0.2]], [[nan, nan, -1.0, 0.0]]])
    visible = torch.ones(1, 4, dtype=torch.bool)
    for function in (torch.ops.mmoe.joint_select, reference.joint_select):
        for numbers in ((1, 1, 0), (0, 2, 2)):
            picked = function(scores_BGE, visible, visible[:, 0], None, *numbers, 1, False)
            assert picked.int().tolist() == [[[0, 1, 0, 1]], [[0, 0, 0, 0]]]


def test_it_has_no_gradient_and_takes_strided_input(usual):
    scores_BGE, visibility_GE = inputs(usual)
    strided = scores_BGE.permute(2, 1, 0).contiguous().permute(2, 1, 0).requires_grad_()

    picked = joint_select(strided, visibility_GE.t().contiguous().t(), shared_k=1, private_k=2)

    assert not picked.requires_grad
    assert torch.equal(picked, joint_select(scores_BGE, visibility_GE, shared_k=1, private_k=2))


SCORES, VISIBLE = torch.ones(2, 3, 4), torch.ones(3, 4, dtype=torch.bool)
TOO_MANY = r"shared_k: expected shared_k \+ private_k from 1 to 4 .* got"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scores_BGE": SCORES[0]}, "scores_BGE: expected 3 dimensions"),
        ({"scores_BGE": SCORES.bfloat16()}, "scores_BGE: expected one of torch.float32, torch.flo"),
        ({"scores_BGE": SCORES[..., :0]}, "scores_BGE: expected at least one expert, got none"),
        (
            {"visibility_GE": VISIBLE[:2]},
            r"visibility_GE: expected shape \[3, 4\] to fit scores_BG",
        ),
        ({"visibility_GE": VISIBLE.int()}, "visibility_GE: expected dtype torch.bool, got torch.i"),
        ({"votes_G": VISIBLE[0]}, r"votes_G: expected shape \[3\]"),
        ({"asked_BG": VISIBLE[:2]}, r"asked_BG: expected shape \[2, 3\]"),
        ({"shared_k": -1}, "shared_k: expected 0 or more, got -1"),
        ({"private_k": -2}, "private_k: expected 0 or more, got -2"),
        ({"private_k": 0}, rf"{TOO_MANY} 0 \+ 0"),
        ({"shared_k": 4}, rf"{TOO_MANY} 4 \+ 1"),
        ({"shared_k": 2, "budget": 1}, r"budget: expected 2 or more \(shared_k is 2\), got 1"),
        ({"floor": 2}, "floor: expected 0 or 1, got 2"),
        ({"aggregate": "sum"}, "aggregate: expected 'mean' or 'max', got 'sum'"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        joint_select(**{"scores_BGE": SCORES, "visibility_GE": VISIBLE, "private_k": 1} | changed)
