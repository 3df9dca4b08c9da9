"""What holds for every mixture, on shapes and routings that hypothesis thinks up."""

import math
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmoe.mixture import (
    Capacity,
    ExpertPool,
    GateOutput,
    MLPExperts,
    MultiGateMixture,
    SoftmaxGate,
    TopKGate,
    mlp_experts,
)
from mmoe.ops import route_plan

SIZES = st.sampled_from([1, 2, 3, 5, 17])
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 5e-2}
some = settings(max_examples=50, deadline=None, derandomize=True)


class Given(nn.Module):
    """A gate that decides what it was told: picks, or weights for all experts."""

    def __init__(self, weights, experts=None):
        super().__init__()
        self.weights, self.experts = nn.Parameter(weights), experts

    def forward(self, inputs, visibility_GE):
        return GateOutput(self.weights, self.experts, {})


class Case:
    """Sizes, what each gate sees, and picks among that: repeated and unused ones too."""

    def __init__(self, draw):
        self.B, self.G = draw(st.integers(0, 7)), draw(st.integers(1, 4))
        self.E, self.K = draw(st.integers(1, 6)), draw(st.integers(1, 4))
        self.D, self.H = draw(SIZES), draw(SIZES)
        self.activation = draw(st.sampled_from(["gelu", "silu", "swiglu"]))
        self.dtype = draw(st.sampled_from(list(TOLERANCE)))
        self.seed = draw(st.integers(0, 10**6))
        torch.manual_seed(self.seed)
        self.sees_GE = torch.rand(self.G, self.E) < draw(st.sampled_from([0.3, 0.7, 1]))
        for g in range(self.G):  # every gate sees an expert, and every expert is seen
            self.sees_GE[g, torch.randint(self.E, ())] = True
        for e in range(self.E):
            self.sees_GE[torch.randint(self.G, ()), e] = True
        self.picks_BGK = self.make_picks(draw)
        self.weights_BGK = torch.rand(self.B, self.G, self.K, dtype=torch.float64)
        self.x_BD = torch.randn(self.B, self.D).to(self.dtype)

    def __repr__(self):
        return f"Case({vars(self)})"

    def make_picks(self, draw):
        """Of what a gate sees: all different, or any; some of them unused, or all."""
        picks_BGK = torch.empty(self.B, self.G, self.K, dtype=torch.int32)
        any_of_them = draw(st.booleans())
        for g, sees in enumerate(self.sees_GE):
            own = sees.nonzero().flatten().int()
            for b in range(self.B):
                if any_of_them:
                    picks_BGK[b, g] = own[torch.randint(len(own), (self.K,))]
                else:
                    order = own[torch.randperm(len(own))][: self.K]
                    picks_BGK[b, g] = nn.functional.pad(order, (0, self.K - len(order)), value=-1)
        unused = torch.rand(picks_BGK.shape) < draw(st.sampled_from([0, 0.4, 1]))
        return picks_BGK.masked_fill(unused, -1)

    def pool(self):
        torch.manual_seed(self.seed)
        pool = MLPExperts(self.E, self.D, [5, self.H], activation=self.activation)
        for bias in pool.biases:
            nn.init.normal_(bias)
        return pool.to(self.dtype)

    def gate(self, rows=slice(None), gates=slice(None)):
        sums = torch.float64 if self.dtype == torch.float64 else torch.float32
        return Given(
            self.weights_BGK[rows, gates].to(sums).clone(), self.picks_BGK[rows, gates].contiguous()
        )

    def layer(self, execution, **settings):
        settings = {"gate": self.gate(), "visibility": self.sees_GE} | settings
        num_gates = settings.pop("num_gates", self.G)
        pool = settings.pop("pool", None) or self.pool()
        return MultiGateMixture(self.D, num_gates, pool, execution=execution, **settings)


cases = st.composite(lambda draw: Case(draw))()


def by_brute_force(case, pool, x_BD, weights_BGK, picks_BGK=None):
    """Row by row, gate by gate, pick by pick, in float64 and differentiable."""
    weights = [[w.double().unbind(0) for w in kind] for kind in (pool.weights, pool.biases)]
    x_BD, weights_BGK = x_BD.double(), weights_BGK.double()
    picks = (case.picks_BGK if picks_BGK is None else picks_BGK).tolist()
    out = []
    for b in range(case.B):
        for g in range(case.G):
            total = torch.zeros(case.H, dtype=torch.float64)
            for k, e in enumerate(picks[b][g]):
                if e < 0:
                    continue
                x = x_BD[b]
                for weight, bias in zip(*weights, strict=True):
                    x = activate(case.activation, x @ weight[e] + bias[e])
                total = total + weights_BGK[b, g, k] * x
            out.append(total)
    out = torch.stack(out) if out else torch.zeros(0, dtype=torch.float64)
    # Where nothing was picked, there would be no graph.
    return out.view(case.B, case.G, case.H) + 0 * weights_BGK.sum()


def activate(name, z):
    if name == "swiglu":
        a, c = z.chunk(2)
        return nn.functional.silu(a) * c
    return getattr(nn.functional, name)(z)


def gradients(out, leaves):
    torch.manual_seed(1)
    weighting = torch.randn(out.shape, dtype=torch.float64)
    return torch.autograd.grad((out.double() * weighting).sum(), leaves, materialize_grads=True)


def check_close(case, actual, expected):
    """Within the dtype's rounding, of the largest number."""
    for left, right in zip(actual, expected, strict=True):
        scale = max(1.0, float(right.detach().abs().max())) if right.numel() else 1.0
        torch.testing.assert_close(
            left.double(), right.double(), rtol=0, atol=scale * TOLERANCE[case.dtype]
        )


@some
@given(case=cases)
def test_every_execution_equals_brute_force(case):
    """Outputs and all gradients: input, gate weights, experts."""
    results = []
    for execution in ("dense", "grouped", "padded", "auto", "brute force"):
        capacity = Capacity(0.0) if execution == "padded" else None
        forced = "grouped" if execution == "brute force" else execution
        layer = case.layer(forced, capacity=capacity)
        x = case.x_BD.clone().requires_grad_()
        if execution == "brute force":
            out = by_brute_force(case, layer.experts, x, layer.gate.weights)
        else:
            out = layer(x).out_BGO
            assert out.dtype == case.dtype
        results.append((out, *gradients(out, [x, *layer.parameters()])))

    *actual, expected = results
    for result in actual:
        check_close(case, result, expected)


@some
@given(case=cases, execution=st.sampled_from(["dense", "grouped", "auto"]))
def test_gates_together_equal_gates_apart(case, execution):
    """One layer of G gates is G layers of one gate over the same experts, gradients included."""
    together = case.layer(execution)
    apart = [
        case.layer(
            execution,
            pool=together.experts,
            num_gates=1,
            gate=case.gate(gates=slice(g, g + 1)),
            visibility=None,
        )
        for g in range(case.G)
    ]
    x = case.x_BD.clone().requires_grad_()

    out = together(x).out_BGO
    expected = torch.cat([layer(x).out_BGO for layer in apart], 1)

    shared = [x, *together.experts.parameters()]
    own = [layer.gate.weights for layer in apart]
    actual = gradients(out, [*shared, together.gate.weights])
    wanted = gradients(expected, [*shared, *own])
    check_close(case, [out], [expected])
    check_close(case, actual[:-1], wanted[: len(shared)])
    check_close(case, actual[-1:], [torch.cat(wanted[len(shared) :], 1)])


@some
@given(case=cases, kind=st.sampled_from(["softmax", "before", "after"]), data=st.data())
def test_gates_of_the_library(case, kind, data):
    """Dense equals grouped equals brute force over whatever gates learn from; no unseen expert."""
    torch.manual_seed(case.seed)
    k = data.draw(st.integers(1, int(case.sees_GE.sum(1).min())))
    dtype = torch.float32 if case.dtype == torch.bfloat16 else case.dtype
    case.dtype, case.x_BD = dtype, case.x_BD.to(dtype)
    gate = SoftmaxGate(case.D, case.G, case.E)
    if kind != "softmax":
        gate = TopKGate(case.D, case.G, case.E, k=k, softmax=kind)
    gate, results = gate.to(dtype), []
    for execution in ("dense", "grouped", "brute force"):
        x = case.x_BD.clone().requires_grad_()
        layer = case.layer("grouped" if execution == "brute force" else execution, gate=gate)
        if execution == "brute force":
            weights, picks, _ = gate([x] * case.G, case.sees_GE)
            if picks is None:
                picks = torch.arange(case.E).expand(case.B, case.G, -1)
            out = by_brute_force(case, layer.experts, x, weights, picks)
        else:
            result = layer(x, return_gates=True)
            out, weights_BGE = result.out_BGO, result.gate_weights_BGE
            assert not weights_BGE[:, ~case.sees_GE].any()
            if kind != "before":
                torch.testing.assert_close(weights_BGE.sum(2), torch.ones_like(weights_BGE[..., 0]))
        results.append((out, *gradients(out, [x, *layer.parameters()])))
    for result in results[:2]:
        check_close(case, result, results[2])


@some
@given(case=cases, execution=st.sampled_from(["dense", "grouped", "auto"]))
def test_rows_do_not_know_each_other(case, execution):
    """In evaluation every row alone has the bits it has in the batch, whatever the capacity."""
    layer = case.layer(execution, capacity=Capacity(0.1)).eval()
    out = layer(case.x_BD).out_BGO
    assert torch.equal(out, case.layer(execution).eval()(case.x_BD).out_BGO)
    order = torch.randperm(case.B)

    layer.gate = case.gate(rows=order)
    assert torch.equal(layer(case.x_BD[order]).out_BGO, out[order])
    for b in range(case.B):
        row = slice(b, b + 1)
        layer.gate = case.gate(rows=row)
        assert torch.equal(layer(case.x_BD[row]).out_BGO, out[row])


@some
@given(case=cases, execution=st.sampled_from(["dense", "grouped", "auto"]))
def test_names_of_gates_and_experts_do_not_matter(case, execution):
    """Renumbered gates give the same bits elsewhere; renumbered experts the same numbers."""
    out = case.layer(execution)(case.x_BD).out_BGO
    gates, experts = torch.randperm(case.G), torch.randperm(case.E)

    moved = case.layer(execution, gate=case.gate(gates=gates), visibility=case.sees_GE[gates])
    assert torch.equal(moved(case.x_BD).out_BGO, out[:, gates])

    numbers_E = experts.argsort().int()  # where an expert is now
    picks = case.picks_BGK
    renumbered = torch.where(picks >= 0, numbers_E[picks.clamp(min=0).long()], -1)
    layer = case.layer(execution, visibility=case.sees_GE[:, experts])
    layer.gate.experts = renumbered
    with torch.no_grad():
        for parameter in layer.experts.parameters():
            parameter.copy_(parameter[experts].clone())
    check_close(case, [layer(case.x_BD).out_BGO], [out])


@some
@given(
    case=cases,
    factor=st.sampled_from([0.1, 0.25, 0.5, 1.0, 1.25, 3.0]),
    priority=st.sampled_from(["position", "choice", "probability"]),
)
def test_no_expert_gets_more_than_its_capacity(counts, case, factor, priority):
    """Each keeps as many as fit, the right ones; the drops are all the others."""
    pool = counts(case.E)
    layer = case.layer("grouped", pool=pool, capacity=Capacity(factor, priority))

    result = layer(case.x_BD)

    load = Fraction(case.B * min(case.G * case.K, case.E), case.E)
    most = min(case.B, math.ceil(Fraction(str(factor)) * load))
    wanted = {}  # weights of each row at each expert, and which picks they are of
    weights = layer.gate.weights.tolist()
    for b, gates in enumerate(case.picks_BGK.tolist()):
        for g, picks in enumerate(gates):
            for k, e in enumerate(picks):
                if e >= 0:
                    wanted.setdefault(e, {}).setdefault(b, []).append((weights[b][g][k], k))
    expected_E, dropped, mixed_BG = [], 0, torch.zeros(case.B, case.G)
    picks_BGK = case.picks_BGK.clone()
    for e in range(case.E):
        rows = wanted.get(e, {})
        rank = {
            "position": lambda b, rows=rows: b,
            "choice": lambda b, rows=rows: (min(k for _, k in rows[b]), b),
            "probability": lambda b, rows=rows: -sum(weight for weight, _ in rows[b]),
        }[priority]
        queue = sorted(rows, key=rank)
        expected_E.append(min(len(queue), most))
        for b in queue[most:]:
            dropped += len(rows[b])
            picks_BGK[b][picks_BGK[b] == e] = -1
    mixed_BG = (layer.gate.weights.detach() * (picks_BGK >= 0)).sum(2)
    assert pool.rows_E == expected_E
    assert int(result.dropped) == dropped
    check_close(case, [result.out_BGO], [mixed_BG.unsqueeze(2) * case.x_BD.unsqueeze(1)])

    layer.eval()(case.x_BD)
    assert pool.rows_E == [len(wanted.get(e, {})) for e in range(case.E)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_plans(data):
    """Every invariant of `route_plan`, and what renumbering gates and samples may change."""
    B, G, K, E = (data.draw(st.integers(low, 6)) for low in (0, 1, 1, 1))
    one = st.integers(-1, E - 1)
    numbers = data.draw(st.lists(one, min_size=B * G * K, max_size=B * G * K))
    picks_BGK = torch.tensor(numbers, dtype=torch.int32).view(B, G, K)
    plan = route_plan(picks_BGK, E)
    offsets, rows = plan.offsets_E1.tolist(), plan.rows_P.tolist()

    assert len(rows) == B * min(G * K, E)
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert rows[offsets[-1] :] == [-1] * (len(rows) - offsets[-1])
    pairs = set()
    for e in range(E):
        own = rows[offsets[e] : offsets[e + 1]]
        assert own == sorted(set(own))
        pairs |= {(b, e) for b in own}
    assert pairs == {(b, e) for b in range(B) for e in picks_BGK[b].flatten().tolist() if e >= 0}
    for b, sample in enumerate(picks_BGK.flatten(1).tolist()):
        for e, slot in zip(sample, plan.slots_BGK[b].flatten().tolist(), strict=True):
            assert (slot == -1) == (e == -1)
            assert slot == -1 or (rows[slot] == b and offsets[e] <= slot < offsets[e + 1])

    order = torch.tensor(data.draw(st.permutations(range(G))))
    moved = route_plan(picks_BGK[:, order], E)
    assert torch.equal(moved.rows_P, plan.rows_P)
    assert torch.equal(moved.slots_BGK, plan.slots_BGK[:, order])
    twice = route_plan(torch.cat([picks_BGK, picks_BGK], 1), E)
    assert twice.rows_P[: offsets[-1]].tolist() == rows[: offsets[-1]]
    assert torch.equal(twice.slots_BGK, torch.cat([plan.slots_BGK] * 2, 1))
    backwards = route_plan(picks_BGK.flip(0), E)
    assert torch.equal(backwards.offsets_E1, plan.offsets_E1)


@st.composite
def with_sources(draw):
    size = {name: draw(st.integers(1, 4)) for name in ("G", "E", "K", "S")}
    size |= {name: draw(st.integers(1, 19)) for name in ("D", "H")}
    size["B"] = draw(st.integers(0, 9))
    torch.manual_seed(draw(st.integers(0, 1000)))
    B, G, E, S = (size[name] for name in "BGES")
    K = min(size["K"], E)
    if draw(st.booleans()):  # everybody wants the same experts
        picks = torch.arange(K, dtype=torch.int32).expand(B, G, K)
    else:
        picks = torch.rand(B, G, E).argsort(-1)[..., :K].to(torch.int32)
    picks = picks.masked_fill(torch.rand(B, G, K) < draw(st.sampled_from([0, 0.4, 1])), -1)
    sources = torch.randint(0, S, (E,)).tolist()
    x = torch.randn(B, max(sources) + 1, size["D"], dtype=torch.float64)
    modules = draw(st.booleans())
    return size, picks, torch.rand(B, G, K, dtype=torch.float64), sources, x, modules


def run_sources(case, execution):
    """Output and the gradients of x, the weights and the experts."""
    size, picks, weights, sources, x, modules = case
    torch.manual_seed(0)
    pool = mlp_experts(size["E"], size["D"], [5, size["H"]], activation="silu").double()
    if modules:
        pool = ExpertPool([nn.Linear(size["D"], size["H"]) for _ in range(size["E"])]).double()
    layer = MultiGateMixture(
        size["D"],
        size["G"],
        pool,
        gate=Given(weights.clone(), picks),
        execution="auto" if execution == "specification" else execution,
        expert_source=sources,
        capacity=Capacity(1e6) if execution == "padded" else None,
    )
    x = x.clone().requires_grad_()
    if execution == "specification":  # one sum over experts that all ran
        y = pool.dense([x[:, s] for s in sources])
        used = (picks >= 0).unsqueeze(-1)
        picked = torch.stack(y, 1)[torch.arange(len(x))[:, None, None], picks.clamp(min=0).long()]
        out = (layer.gate.weights.unsqueeze(-1) * picked * used).sum(2)
    else:
        out = layer(x).out_BGO
    torch.manual_seed(1)
    (out * torch.randn(out.shape, dtype=out.dtype)).sum().backward()
    return out, x.grad, [p.grad for p in layer.parameters()]


@given(with_sources())
@settings(max_examples=60, deadline=None)
def test_every_execution_equals_the_sum_and_repeats_its_bits(case):
    expected = run_sources(case, "specification")
    for execution in ("dense", "grouped", "padded"):
        result = run_sources(case, execution)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(run_sources(case, execution), result, rtol=0, atol=0)
