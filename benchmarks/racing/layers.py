"""Contestants: our layer and other ways to compute the same, on the same values."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.racing.child import onednn_is_exact, onednn_products
from benchmarks.racing.harness import Clock
from mmoe.config import RunConfig, config_from_dict
from mmoe.datasets.recipes import load_recipe
from mmoe.mixture import GateOutput, MLPExperts, MultiGateMixture, SoftmaxGate, TopKGate
from mmoe.mixture.gates.learned import GateLogits
from mmoe.models.build import build_ranker
from mmoe.ops.gating import topk_gate
from mmoe.parallel.launch.process_group import ensure_process_group
from mmoe.train import PreparedData, prepare
from mmoe.train.optim import build_optimizer
from mmoe.train.state import Position, TrainingState
from mmoe.train.step import Step, StepProgram

# Contestants of the layer's races, and whether they compute the same thing

INPUT_GRADIENT = "the input gradient"
# Rounding moves a sum or two across ReLU's kink, where the gradient jumps and the output does not.
KINKS = 1e-2


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One training step: forward, backward, and the gradients thrown away, as optimizers do."""

    forward: Callable[[], Sequence[Tensor]]  # Builds the outputs, `[B, gates, O]` each
    grads: Sequence[Tensor]  # The gradient of each output
    leaves: Sequence[Tensor]  # Everything that gets a gradient; the first one is the input
    # Those of the leaves whose gradients are compared between contestants
    weights: Sequence[Tensor]
    # What the forward pass runs under (autocast)
    around: Callable[[], AbstractContextManager] = nullcontext
    # What the whole step runs under (another product backend)
    outside: Callable[[], AbstractContextManager] = nullcontext

    def run(self) -> list[Tensor]:
        with self.outside():
            with self.around():
                outputs = list(self.forward())
            torch.autograd.backward(outputs, list(self.grads))
        return outputs

    def step(self) -> None:
        self.run()
        for leaf in self.leaves:
            leaf.grad = None


def check_equal(name: str, contestants: Mapping[str, Contestant], tolerance: float) -> None:
    """Refuses to compare different mathematics: outputs, input gradient, norm of the weights'."""
    wanted: dict[str, Tensor] = {}
    for who, contestant in contestants.items():
        found = _signature(contestant)
        wanted = wanted or found
        for what, value in found.items():
            error = _relative_error(value, wanted[what])
            allowed = tolerance + (KINKS if what == INPUT_GRADIENT else 0)
            if not error <= allowed:
                raise ValueError(
                    f"{name}: expected {what} of {who!r} within {allowed:g} of "
                    f"{next(iter(contestants))!r}, got a relative error of {error:.3g}; the "
                    "contestants do not compute the same thing"
                )


def _signature(contestant: Contestant) -> dict[str, Tensor]:
    outputs = torch.cat([y.detach().double() for y in contestant.run()], dim=1)
    input_grad = contestant.leaves[0].grad
    assert input_grad is not None
    # Layouts differ between contestants; the norm over all weights does not.
    squares = [w.grad.double().square().sum() for w in contestant.weights if w.grad is not None]
    signature = {
        "the output": outputs.flatten(),
        INPUT_GRADIENT: input_grad.double().flatten(),
        "the norm of the weights' gradients": torch.stack(squares).sum().sqrt().reshape(1),
    }
    for leaf in contestant.leaves:
        leaf.grad = None
    return signature


def _relative_error(value: Tensor, wanted: Tensor) -> float:
    if value.shape != wanted.shape:
        return math.inf
    return float((value - wanted).norm() / wanted.norm().clamp_min(1e-30))


# What is computed: sizes, weights and logits, the same for every contestant of a race


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of a layer; letters as in `mmoe.mixture`."""

    B: int
    D: int
    # Widths of an expert's layers, the last one its output; ReLU after each
    hidden: tuple[int, ...]
    E: int
    G: int = 1
    k: int | None = None  # Picks of a gate; None: softmax over all experts
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.D, *self.hidden)

    @property
    def output_dim(self) -> int:
        return self.hidden[-1]

    @property
    def tolerance(self) -> float:
        """Relative error that orders of summation and roundings explain."""
        return 1e-4 if self.dtype == torch.float32 else 2e-2

    def dense_flops(self) -> float:
        per_row = sum(a * b for a, b in zip(self.widths, self.hidden, strict=False)) * self.E
        return 6.0 * self.B * (per_row + self.D * self.E * self.G)


@dataclass(frozen=True, kw_only=True)
class Values:
    """Numbers for a workload: leaves are made from copies of these."""

    x_BD: Tensor
    grad_BGO: Tensor  # The gradient that comes back
    layers: Sequence[Tensor]  # For every layer of the experts, weights `[E, in, out]`
    gate_GED: Tensor  # Weights of linear gates


def draw(work: Workload, seed: int = 0) -> Values:
    generator = torch.Generator(work.device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(*shape, generator=generator, device=work.device) * scale
        return values.to(work.dtype)

    widths = zip(work.widths, work.hidden, strict=False)
    return Values(
        x_BD=normal(work.B, work.D),
        grad_BGO=normal(work.B, work.G, work.output_dim),
        layers=[normal(work.E, a, b, scale=(2 / a) ** 0.5) for a, b in widths],
        gate_GED=normal(work.G, work.E, work.D, scale=work.D**-0.5),
    )


def correlated_logits(work: Workload, shared: float) -> Tensor:
    """`logits_BGE = shared · s_be + (1 − shared) · own_bge`; 0 shared: independent gates."""
    generator = torch.Generator(work.device).manual_seed(1)
    common = torch.randn(work.B, 1, work.E, generator=generator, device=work.device)
    own = torch.randn(work.B, work.G, work.E, generator=generator, device=work.device)
    return shared * common + (1 - shared) * own


def skewed_logits(work: Workload, exponent: float) -> Tensor:
    """Gates that like the same experts: by Gumbel noise, first picks follow `rank ** -exponent`."""
    generator = torch.Generator(work.device).manual_seed(2)
    uniform = torch.rand(work.B, work.G, work.E, generator=generator, device=work.device)
    ranks = torch.arange(1, work.E + 1, device=work.device)
    return -exponent * ranks.log() - (-uniform.clamp_min(1e-12).log()).clamp_min(1e-12).log()


def distinct_pairs(logits_BGE: Tensor, k: int) -> tuple[int, int]:
    picks_BGK = logits_BGE.topk(k, dim=-1).indices
    chosen_BE = torch.zeros(len(logits_BGE), logits_BGE.shape[-1], dtype=torch.bool)
    chosen_BE.scatter_(1, picks_BGK.flatten(1).cpu(), True)
    return int(chosen_BE.sum()), picks_BGK.numel()


# Our layer as a contestant, in every setting that the contests need


class GivenLogits(nn.Module):
    """A gate whose logits are parameters, so that races can say what is routed where."""

    def __init__(self, logits_BGE: Tensor, k: int) -> None:
        super().__init__()
        self.logits_BGE = nn.Parameter(logits_BGE.clone())
        self.k = k

    def forward(self, inputs: Sequence[Tensor], visibility_GE: Tensor) -> GateOutput:
        weights_BGK, experts_BGK = topk_gate(self.logits_BGE, visibility_GE, self.k)
        return GateOutput(weights_BGK, experts_BGK, {})


def our_experts(work: Workload, values: Values) -> MLPExperts:
    pool = MLPExperts(work.E, work.D, work.hidden).to(work.device, work.dtype)
    with torch.no_grad():
        for weight_EIO, drawn_EIO in zip(pool.weights, values.layers, strict=True):
            weight_EIO.copy_(drawn_EIO)
    return pool


def linear_gate(work: Workload, values: Values) -> nn.Module:
    sizes = (work.D, work.G, work.E)
    gate = SoftmaxGate(*sizes) if work.k is None else TopKGate(*sizes, k=work.k)
    gate = gate.to(work.device, work.dtype)
    with torch.no_grad():
        gate.logits.weights[0].copy_(values.gate_GED)
    return gate


def our_layer(
    work: Workload, values: Values, gate: nn.Module | None = None, **settings
) -> MultiGateMixture:
    gate = linear_gate(work, values) if gate is None else gate
    layer = MultiGateMixture(work.D, work.G, our_experts(work, values), gate=gate, **settings)
    return layer.to(work.device).train()


def ours(
    work: Workload,
    values: Values,
    *,
    gate: nn.Module | None = None,
    around: Callable[[], AbstractContextManager] = nullcontext,
    **settings,
) -> Contestant:
    layer = our_layer(work, values, gate, **settings)
    x_BD = leaf(values.x_BD)
    return contestant(
        lambda: [layer(x_BD).out_BGO], [values.grad_BGO], x_BD, [layer], around=around
    )


def one_layer_per_gate(work: Workload, values: Values, logits_BGE: Tensor, k: int) -> Contestant:
    pool = our_experts(work, values)
    layers = []
    for logits_BE in logits_BGE.unbind(1):
        gate = GivenLogits(logits_BE.unsqueeze(1), k)
        layer = MultiGateMixture(work.D, 1, pool, gate=gate)
        layers.append(layer.to(work.device).train())
    x_BD = leaf(values.x_BD)
    return contestant(
        lambda: [layer(x_BD).out_BGO for layer in layers],
        values.grad_BGO.split(1, dim=1),
        x_BD,
        layers,
    )


def leaf(values: Tensor) -> Tensor:
    return values.detach().clone().requires_grad_()


def contestant(
    forward: Callable[[], Sequence[Tensor]],
    grads: Sequence[Tensor],
    x_BD: Tensor,
    modules: Sequence[nn.Module],
    *,
    around: Callable[[], AbstractContextManager] = nullcontext,
    outside: Callable[[], AbstractContextManager] = nullcontext,
) -> Contestant:
    """Every parameter of the modules, once, gets a gradient; biases are not compared."""
    named = {id(p): (name, p) for module in modules for name, p in module.named_parameters()}
    parameters = [p for _, p in named.values()]
    return Contestant(
        forward=forward,
        grads=grads,
        leaves=[x_BD, *parameters],
        weights=[p for name, p in named.values() if "bias" not in name],
        around=around,
        outside=outside,
    )


# What people use instead of our layer, written the way they write it


class LoopMixture(nn.Module):
    """The MMoE of recommender libraries: a loop over MLPs, stacked, and a weighted sum per gate.

    The experts' outputs are stacked once and one batched product serves all gates: a few per cent
    ahead of `einsum`, of multiply-and-sum and of one product per gate.
    """

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__()
        self.experts = linear_experts(work, values)
        self.gates = nn.ModuleList(nn.Linear(work.D, work.E, bias=False) for _ in range(work.G))
        self.to(work.device, work.dtype)
        with torch.no_grad():
            gate: Any
            for gate, weight_ED in zip(self.gates, values.gate_GED, strict=True):
                gate.weight.copy_(weight_ED)

    def forward(self, x_BD: Tensor) -> Tensor:
        y_BEO = torch.stack([expert(x_BD) for expert in self.experts], dim=1)
        weights_BGE = torch.stack([gate(x_BD).softmax(-1) for gate in self.gates], dim=1)
        return torch.bmm(weights_BGE.to(y_BEO.dtype), y_BEO)


class SparseLayer(nn.Module):
    """Linear top-k gate in fp32, softmax over the k; what follows is the subclass's."""

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__()
        assert work.k is not None
        self.k, self.num_experts = work.k, work.E
        self.gate_ED = nn.Parameter(values.gate_GED[0].clone())

    def pick(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        logits_BE = F.linear(x_BD.float(), self.gate_ED.float())
        top_BK, experts_BK = logits_BE.topk(self.k, dim=-1)
        return top_BK.softmax(-1), experts_BK


class GroupedMMLayer(SparseLayer):
    """Sort the picks by expert, gather, `F.grouped_mm`, weigh, add: no biases.

    Weights lie as in torchtitan, `[E, out, in]`. `index_select` and `index_add` are as fast as
    indexing and as undoing the sort, or faster.
    """

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__(work, values)
        self.layers = nn.ParameterList(w.mT.contiguous() for w in values.layers)

    def forward(self, x_BD: Tensor) -> Tensor:
        weights_BK, experts_BK = self.pick(x_BD)
        picks = experts_BK.flatten()
        order = picks.argsort(stable=True)
        rows = order // self.k
        ends_E = torch.bincount(picks, minlength=self.num_experts).cumsum(0).to(torch.int32)
        y = x_BD.index_select(0, rows)
        for weight_EOI in self.layers:
            y = F.grouped_mm(y, weight_EOI.mT, offs=ends_E).relu()
        y = y * weights_BK.flatten()[order].unsqueeze(-1).to(y.dtype)
        return y.new_zeros(len(x_BD), y.shape[1]).index_add(0, rows, y)


class MaskLayer(SparseLayer):
    """Every expert on all rows, times its weight, which is zero where it was not picked."""

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__(work, values)
        self.experts = linear_experts(work, values)

    def forward(self, x_BD: Tensor) -> Tensor:
        weights_BK, experts_BK = self.pick(x_BD)
        out = torch.zeros_like(x_BD[:, :1])
        for e, expert in enumerate(self.experts):
            weight_B = (weights_BK * (experts_BK == e)).sum(-1)
            out = out + expert(x_BD) * weight_B.unsqueeze(-1).to(x_BD.dtype)
        return out


class IndexLayer(SparseLayer):
    """For every expert: find its rows, gather, run, weigh, add (Mixtral as first published)."""

    def __init__(self, work: Workload, values: Values) -> None:
        super().__init__(work, values)
        self.experts = linear_experts(work, values)
        self.output_dim = work.output_dim

    def forward(self, x_BD: Tensor) -> Tensor:
        weights_BK, experts_BK = self.pick(x_BD)
        out_BO = x_BD.new_zeros(len(x_BD), self.output_dim)
        for e, expert in enumerate(self.experts):
            rows, place = torch.where(experts_BK == e)
            y = expert(x_BD[rows]) * weights_BK[rows, place].unsqueeze(-1).to(x_BD.dtype)
            out_BO.index_add_(0, rows, y)
        return out_BO


def linear_experts(work: Workload, values: Values) -> nn.ModuleList:
    experts = nn.ModuleList()
    for e in range(work.E):
        layers: list[nn.Module] = []
        for weight_EIO in values.layers:
            linear = nn.Linear(weight_EIO.shape[1], weight_EIO.shape[2])
            with torch.no_grad():
                linear.weight.copy_(weight_EIO[e].T)
                nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        experts.append(nn.Sequential(*layers))
    return experts.to(work.device, work.dtype)


def alternative(
    kind: Callable[[Workload, Values], nn.Module],
    work: Workload,
    values: Values,
    *,
    around: Callable[[], AbstractContextManager] = nullcontext,
    outside: Callable[[], AbstractContextManager] = nullcontext,
) -> Contestant:
    module = kind(work, values).to(work.device)
    x_BD = leaf(values.x_BD)

    def forward() -> list[Tensor]:
        out = module(x_BD)
        return [out if out.dim() == 3 else out.unsqueeze(1)]

    grads = [values.grad_BGO]
    return contestant(forward, grads, x_BD, [module], around=around, outside=outside)


def alternatives(
    name: str, kind: Callable[[Workload, Values], nn.Module], work: Workload, values: Values
) -> dict[str, Contestant]:
    """It, and where that applies `NAME_onednn`, its fp32 products through oneDNN."""
    found = {name: alternative(kind, work, values)}
    if work.dtype == torch.float32 and onednn_is_exact(work.device):
        found[f"{name}_onednn"] = alternative(kind, work, values, outside=onednn_products)
    return found


# Logits of gates that were trained on the synthetic funnel

BATCHES = 3  # of the test rows, which the gates have not seen
# The recipe knows two labels; a shop's ranker has more of them, made of the same events.
TASKS = (
    {"name": "click", "label": "click"},
    {"name": "purchase", "label": "purchase", "observed_when": "click"},
    {"name": "long_visit", "label": "click == 1 and session_minutes >= 12"},
    {"name": "big_purchase", "label": "purchase == 1 and price >= 20"},
)


def trained_logits(num_experts: int, work: Workload, clock: Clock) -> list[Tensor]:
    """Trains the `synthetic-funnel` recipe with four tasks and top-k gates.

    Returns `logits_BGE` of a few batches of test rows.
    """
    config = _config(num_experts, work.k, quick=clock.rounds == 1)
    ensure_process_group()
    data = prepare(config)
    torch.manual_seed(config.seed)
    ranker = build_ranker(config, data.encoder)
    optimizer = build_optimizer(ranker.network, config.training.optimizer)
    state = TrainingState(ranker, optimizer, None, Position())
    _train(config, state, data, clock)
    ranker.eval()
    return [_logits(state, data, number, work) for number in range(BATCHES)]


def _config(num_experts: int, k: int | None, *, quick: bool) -> RunConfig:
    overrides = [f"model.num_experts={num_experts}", "model.gate.kind=top_k", f"model.gate.k={k}"]
    if quick:
        overrides += ["data.options.rows=200000", "training.epochs=1"]
    raw = load_recipe("synthetic-funnel", overrides).model_dump(mode="json")
    return config_from_dict({**raw, "tasks": list(TASKS)})


def _train(config: RunConfig, state: TrainingState, data: PreparedData, clock: Clock) -> None:
    training = config.training
    steps = -(-len(data.train) // training.batch_size) * training.epochs
    state.ranker.train()
    for epoch in range(training.epochs):
        for batch in data.train.epoch_batches(config.seed, epoch, training.batch_size):
            StepProgram(state, config, steps).train(Step.of([batch]))
            state.position.step += 1
        clock.say(f"trained gates of {config.model.num_experts} experts: epoch {epoch + 1}")


def _logits(state: TrainingState, data: PreparedData, number: int, work: Workload) -> Tensor:
    gates = [m for m in state.ranker.modules() if isinstance(m, GateLogits)]
    assert len(gates) == 1, "the MMoE has one gate module"
    caught: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, logits_BGE: Tensor) -> None:
        caught.append(logits_BGE)

    hook = gates[0].register_forward_hook(keep)
    assert data.test.held is not None, "the recipe's rows are in memory"
    batch = data.test.held.batch(slice(number * work.B, (number + 1) * work.B))
    with torch.no_grad():
        state.ranker(batch)
    hook.remove()
    return caught[0].to(work.device)
