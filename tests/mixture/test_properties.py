"""What holds for every mixture, on shapes and routings that hypothesis thinks up."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmoe.mixture import Capacity, GateOutput, MLPExperts, MultiGateMixture

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
