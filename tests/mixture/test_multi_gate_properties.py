"""MultiGateMixture on shapes and routings that hypothesis thinks up: every way against one sum."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmoe.mixture import Capacity, ExpertPool, GateOutput, MultiGateMixture, mlp_experts


class Given(nn.Module):
    """A gate whose decision is a parameter."""

    def __init__(self, weights, experts):
        super().__init__()
        self.weights, self.picks = nn.Parameter(weights), experts

    def forward(self, inputs, visibility_GE):
        return GateOutput(self.weights, self.picks, {})


@st.composite
def cases(draw):
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


def run(case, execution):
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


@given(cases())
@settings(max_examples=60, deadline=None)
def test_every_execution_equals_the_sum_and_repeats_its_bits(case):
    expected = run(case, "specification")
    for execution in ("dense", "grouped", "padded"):
        result = run(case, execution)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(run(case, execution), result, rtol=0, atol=0)
