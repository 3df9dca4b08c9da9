"""Base of all learned gates: logits, options, and one way from inputs to a decision."""

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self, TypedDict, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.dispatcher import ONE_RANK, RankSums
from mmoe.mixture.gates import losses
from mmoe.mixture.gates.contract import GateOutput, check_domains, check_numbers, check_sizes
from mmoe.mixture.gates.losses import Scope, asked_picks
from mmoe.mixture.gates.select import Selection, Selector, Votes
from mmoe.mixture.inputs import Inputs, of_each_domain
from mmoe.mixture.traits import GateTraits
from mmoe.ops import Softmax, gate_mm, topk_gate
from mmoe.ops.gating import visible_softmax

GateInput = Tensor | Inputs
SHARED_LOGITS = "shared_ED"  # the tensor that logits have with `shared` alone


class GateLogits(nn.Module):
    """Computes logits of all gates together: `logits_g = W_g · relu(… V_g x + c_g) [+ b_g]`.

    The arithmetic is in fp32 (fp64 for fp64 inputs), also under autocast. The weights of all gates
    lie in one tensor per layer, so that gates that read the same input cost one product.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E, logits of each gate.
        hidden: Widths of ReLU layers; `[]` = linear.
        output_bias: Whether the last layer has a bias; in most papers it has none.
        shared: Whether its weights are `U + W_g`: U is learnt by all gates, and W_g is 0 at first.

    Example:
        >>> import torch
        >>> x_BD = torch.zeros(3, 8)
        >>> GateLogits(8, num_gates=2, num_experts=4)([x_BD, x_BD]).shape
        torch.Size([3, 2, 4])

    Source: Hidden layers start as in He et al. (ICCV 2015); the logits' layer is uniform in
        ±1/√fan-in (torch's `nn.Linear`), so the gates start nearly even, but break ties.
    """

    own_GMED: nn.Parameter | None
    own_bias_GME: nn.Parameter | None
    shared_ED: nn.Parameter | None

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        hidden: Sequence[int] = (),
        output_bias: bool = False,
        shared: bool = False,
    ) -> None:
        super().__init__()
        of_hidden = {f"hidden[{i}]": width for i, width in enumerate(hidden)}
        check_at_least_1(
            input_dim=input_dim, num_gates=num_gates, num_experts=num_experts, **of_hidden
        )
        widths = [input_dim, *hidden, num_experts]
        self.weights = nn.ParameterList(
            torch.empty(num_gates, after, before) for before, after in pairwise(widths)
        )
        with_bias = [*hidden, num_experts] if output_bias else hidden
        self.biases = nn.ParameterList(torch.empty(num_gates, width) for width in with_bias)
        self.register_parameter("own_GMED", None)
        self.register_parameter("own_bias_GME", None)
        shared_ED = nn.Parameter(torch.empty(num_experts, widths[-2])) if shared else None
        self.register_parameter(SHARED_LOGITS, shared_ED)
        self.input_dim, self.num_gates, self.num_experts = input_dim, num_gates, num_experts
        self.reset_parameters()

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        last = len(self.weights) - 1
        own = {0: "gates", 1: "domains", 2: "experts"}
        found = {name: {0: "gates"} for name in self.state_dict()}
        found |= {f"{name}.{last}": {0: "gates", 1: "experts"} for name in ("weights", "biases")}
        found |= {"own_GMED": own if last else {**own, 3: "inputs"}, "own_bias_GME": own}
        found["weights.0"][2] = "inputs"
        if self.shared_ED is not None:
            found[SHARED_LOGITS] = {0: "experts"} if last else {0: "experts", 1: "inputs"}
        return found

    def add_domains(self, num_domains: int) -> None:
        """Gives each domain gates of its own: the last layer is `(W_g + U_gm) …` in domain m.

        U is 0 at first, so that domains with few rows begin with what all have learnt together. So
        is what is added to the last layer's bias, if it has one.

        Args:
            num_domains: M.

        Example:
            >>> import torch
            >>> from mmoe.mixture.inputs import Inputs
            >>> logits = GateLogits(8, num_gates=2, num_experts=4)
            >>> logits.add_domains(3)
            >>> rows = Inputs(x_BR=torch.zeros(2, 8)).in_domains(torch.tensor([2, 0]).int(), 3)
            >>> logits([rows.whole] * 2, rows).shape
            torch.Size([2, 2, 4])
        """
        last_GED = self.weights[-1].detach()
        num_gates, num_experts, width = last_GED.shape
        zeros_GMED = last_GED.new_zeros(num_gates, num_domains, num_experts, width)
        self.own_GMED = nn.Parameter(zeros_GMED)
        if len(self.biases) == len(self.weights):
            self.own_bias_GME = nn.Parameter(zeros_GMED[..., 0].clone())

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        *hidden, last = self.weights
        for weight in hidden:
            nn.init.normal_(weight, std=math.sqrt(2 / weight.shape[-1]))
        drawn = last if self.shared_ED is None else self.shared_ED
        nn.init.uniform_(drawn, -1 / math.sqrt(drawn.shape[-1]), 1 / math.sqrt(drawn.shape[-1]))
        if drawn is not last:
            nn.init.zeros_(last)
        for bias in self.biases:
            nn.init.zeros_(bias)

    def forward(self, inputs: Sequence[GateInput], rows: Inputs | None = None) -> Tensor:
        """Computes `logits_BGE` from G inputs `x_BD`, or rows of requests, and their domains."""
        if self.own_GMED is not None or rows is not None:
            check_domains(self.own_GMED, rows)
        if len(inputs) != self.num_gates:
            raise ValueError(
                f"inputs: expected {self.num_gates} tensors, one per gate, got {len(inputs)}"
            )
        for g, x in enumerate(inputs):
            if len(x.shape) != 2 or x.shape[1] != self.input_dim:
                raise ValueError(
                    f"inputs[{g}]: expected shape [rows, {self.input_dim}], got {list(x.shape)}"
                )
        last = len(self.weights) - 1
        read: Sequence[GateInput] = inputs
        # In fp32 whatever runs around it: a rounded logit sends a row to another expert
        with torch.autocast(self.weights[0].device.type, enabled=False):
            for layer, weight_GHD in enumerate(self.weights):
                if layer == last and self.shared_ED is not None:
                    weight_GHD = weight_GHD + self.shared_ED
                bias_GH = self.biases[layer] if layer < len(self.biases) else None
                if layer == last and rows is not None and self.own_GMED is not None:
                    return self._of_domains(read, weight_GHD, bias_GH, rows)
                # One `[B, G, H]` where one product served all gates, else G tensors
                y = gate_products(read, weight_GHD, bias_GH)
                if layer == last:
                    return y if isinstance(y, Tensor) else torch.stack(list(y), dim=1)
                read = y.relu().unbind(1) if isinstance(y, Tensor) else [z.relu() for z in y]
        raise AssertionError("there is a last layer")

    def _of_domains(
        self, inputs: Sequence[GateInput], weight_GED: Tensor, bias_GE: Tensor | None, rows: Inputs
    ) -> Tensor:
        """The last layer, of gates that domains have of their own."""
        assert self.own_GMED is not None, "there are domains"
        weights, biases = _of_each_gate(weight_GED, self.own_GMED), None
        if bias_GE is not None and self.own_bias_GME is not None:
            biases = _of_each_gate(bias_GE, self.own_bias_GME)
        return domain_logits(inputs, weights, rows, biases)


def gate_products(
    inputs: Sequence[GateInput], weight_GHD: Tensor, bias_GH: Tensor | None = None
) -> Sequence[Tensor] | Tensor:
    """Computes `y_g = W_g x_g + b_g`, in one product where gates read the same tensor.

    On the CPU a row's bits depend on that row alone. The libraries behind `F.linear` sum a row in
    an order that depends on its place, and are no faster at these widths.

    Args:
        inputs: G tensors `x_BD`, of any float type, or rows of requests: what weighs their columns
            of the request is then computed once a request.
        weight_GHD: Of any float type; computed is in fp32, or fp64 for fp64 inputs.
        bias_GH: Likewise.

    Returns:
        `y_BGH` where there was one product, else G tensors `y_BH`.

    Example:
        >>> import torch
        >>> x_BD = torch.ones(3, 2)
        >>> gate_products([x_BD, x_BD], torch.ones(2, 4, 2)).shape
        torch.Size([3, 2, 4])
    """
    if len({id(x) for x in inputs}) > 1:
        biases = [None] * len(inputs) if bias_GH is None else bias_GH.unbind(0)
        # unbind, not indexing: weight[g] in a loop gives every gate a full-size gradient.
        return [
            _product(x, weight_HD, bias_H)
            for x, weight_HD, bias_H in zip(inputs, weight_GHD.unbind(0), biases, strict=True)
        ]
    bias_N = None if bias_GH is None else bias_GH.flatten()
    return _product(inputs[0], weight_GHD.flatten(0, 1), bias_N).unflatten(1, weight_GHD.shape[:2])


def domain_logits(
    inputs: Sequence[GateInput],
    weights: Sequence[Tensor],
    rows: Inputs,
    biases: Sequence[Tensor] | None = None,
) -> Tensor:
    """Computes `y_g = W_gm x_g [+ b_gm]`, m the domain of a row, as `gate_products` without.

    Args:
        inputs: As in `gate_products`; rows of requests are read whole.
        weights: `weight_NED` of each gate, from `of_each_domain`.
        rows: With their domains.
        biases: `bias_NE` of each gate likewise.

    Returns:
        `y_BGE`.

    Example:
        >>> import torch
        >>> from mmoe.mixture.inputs import Inputs
        >>> rows = Inputs(x_BR=torch.ones(1, 3)).in_domains(torch.tensor([1]).int(), 1)
        >>> domain_logits([rows.whole] * 2, [torch.zeros(2, 4, 3)] * 2, rows).shape
        torch.Size([1, 2, 4])
    """
    whole: list[Tensor] = [Inputs.of(x).whole for x in inputs]
    if all(x_BD is whole[0] for x_BD in whole):
        # Gates that read the same rows share one product over the rows by domain
        joined_NXD = torch.cat(list(weights), dim=1)
        joined_NX = None if biases is None else torch.cat(list(biases), dim=1)
        y_BX = rows.domain_products(whole[0], joined_NXD, joined_NX)
        return y_BX.unflatten(1, (len(weights), -1))
    each = [None] * len(weights) if biases is None else biases
    parts = [
        rows.domain_products(x_BD, weight_NED, bias_NE)
        for x_BD, weight_NED, bias_NE in zip(whole, weights, each, strict=True)
    ]
    return torch.stack(parts, dim=1)


def _of_each_gate(shared_GX: Tensor, own_GMX: Tensor) -> list[Tensor]:
    """Returns each gate's parameters, domain by domain."""
    # unbind, not indexing: each gate's gradient would have the size of all
    pairs = zip(shared_GX.unbind(0), own_GMX.unbind(0), strict=True)
    return [of_each_domain(shared_X, own_MX) for shared_X, own_MX in pairs]


def _product(x_BD: GateInput, weight_ND: Tensor, bias_N: Tensor | None) -> Tensor:
    if not isinstance(x_BD, Tensor):
        return x_BD.product(_product, weight_ND, bias_N)
    if x_BD.dtype == torch.float16:
        # The operator takes bfloat16, float32 and float64
        x_BD, weight_ND = x_BD.float(), weight_ND.float()
        bias_N = None if bias_N is None else bias_N.float()
    return gate_mm(x_BD, weight_ND.t(), bias_N)


class GateOptions(TypedDict, total=False):
    """Keyword arguments that every learned gate takes.

    All but `hidden`, `always`, `routed_start` and `shared_logits` may be changed between training
    steps, as `gate.options.z_loss = …`.

    Attributes:
        hidden: Widths of ReLU layers before the logits; `[]` = linear, as in most papers.
        temperature: Divides the logits: above 1 evens the weights out, below 1 sharpens them.
        dropout: Probability that a gate does without an expert for a training row: the softmax
            then goes over the others, and picks are made among them. One expert always stays.
        z_loss: Coefficient of the loss for large logits (`losses.z_loss`).
        balance_loss: Coefficient of the loss for uneven loads (`losses.balance`). The load is the
            number of picks where a gate picks, else the weights.
        balance_scope: `gate`: every gate uses its experts evenly. `all`: all gates together do.
        ranks: Sums over the ranks that share a batch, so that the losses are those of all its rows;
            default: there is one rank. Dropout and noise are drawn by each rank for its own rows.
        always: A, of gates that pick: the first A experts, which every row computes. What a gate
            mixes is then `Σ_{e ≤ A} softmax_A(logits)_e y_e + s_g Σ_picked w_e y_e`, whose picks
            are made among the others, and s_g ≥ 0 is learnt.
        routed_start: s_g at first. At 0 gates begin as softmax gates of the first A experts do.
        shared_logits: The logits of gate g are `(U + W_g) x`, W_g 0 at first. U learns from all
            gates, which helps where a row asks for the same experts whatever the task.

    Source: Dropout against polarised gates: Zhao et al., "Recommending what video to watch next"
        (RecSys 2019), with a probability of 0.1 there. Experts of every row: Dai et al.,
        "DeepSeekMoE" (ACL 2024), equations 9 to 11, where they have no gate and s is 1.
    """

    hidden: Sequence[int]
    temperature: float
    dropout: float
    z_loss: float
    balance_loss: float
    balance_scope: Scope
    ranks: RankSums
    always: int
    routed_start: float
    shared_logits: bool


@dataclass(kw_only=True, slots=True)
class GateSettings:
    """Options of one gate, with their defaults, and what they do."""

    hidden: Sequence[int] = ()
    temperature: float = 1.0
    dropout: float = 0.0
    z_loss: float = 0.0
    balance_loss: float = 0.0
    balance_scope: Scope = "gate"
    ranks: RankSums = field(default=ONE_RANK, repr=False)
    always: int = 0
    routed_start: float = 1.0
    shared_logits: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature: expected a number above 0, got {self.temperature}")
        check_share("dropout", self.dropout)
        check_coefficient("z_loss", self.z_loss)
        check_coefficient("balance_loss", self.balance_loss)
        check_coefficient("routed_start", self.routed_start)
        if self.balance_scope not in get_args(Scope):
            raise ValueError(f"balance_scope: expected 'gate' or 'all', got {self.balance_scope!r}")

    def temper(self, logits_BGE: Tensor) -> Tensor:
        """Divides the logits by the temperature."""
        return logits_BGE if self.temperature == 1 else logits_BGE / self.temperature

    def drop(self, logits_BGE: Tensor, visibility_GE: Tensor) -> Tensor:
        """Puts −inf into logits of experts that a gate has to do without in a training step."""
        kept_BGE = self._survivors(visibility_GE.expand(logits_BGE.shape[0], -1, -1), logits_BGE)
        return logits_BGE.masked_fill(~kept_BGE, -torch.inf)

    def drop_weights(self, weights_BGE: Tensor, training: bool) -> Tensor:
        """Takes away weights of dropped experts and shares them out among the others."""
        if not (training and self.dropout):
            return weights_BGE
        kept_BGE = self._survivors(weights_BGE > 0, weights_BGE)
        left_BGE = weights_BGE.masked_fill(~kept_BGE, 0)
        left_BG1 = left_BGE.sum(-1, keepdim=True)
        whole_BG1 = weights_BGE.sum(-1, keepdim=True)
        # Over the sum they had, which of DSelect-k is below 1 while codes stand for no expert
        return left_BGE * (whole_BG1 / torch.where(left_BG1 > 0, left_BG1, 1))

    def balance(
        self,
        probabilities_BGE: Tensor,
        visibility_GE: Tensor,
        experts_BGK: Tensor | None,
        *,
        together: bool = False,
    ) -> Tensor:
        """Computes the scaled loss for uneven loads."""
        amounts = [probabilities_BGE.sum(0)]
        if experts_BGK is not None:
            count = losses.count_pairs if together else losses.count_picks
            amounts.append(count(experts_BGK, visibility_GE.shape[1]))
        importance_GE, *counted = self.ranks.of_losses(*amounts)
        load_GE = counted[0] if counted else importance_GE
        return self.balance_loss * losses.balance(
            load_GE, importance_GE, visibility_GE, self.balance_scope
        )

    def _survivors(self, candidates_BGE: Tensor, like_BGE: Tensor) -> Tensor:
        """Keeps each candidate with probability 1 − dropout, and the luckiest in any case."""
        # −1 is below any luck, so that the luckiest is a candidate
        luck_BGE = torch.rand_like(like_BGE.detach()).masked_fill(~candidates_BGE, -1)
        return (luck_BGE >= self.dropout) | (luck_BGE == luck_BGE.amax(-1, keepdim=True))


def gate_settings(gate: nn.Module, options: GateOptions) -> GateSettings:
    """Reads a gate's options out of the keyword arguments that it passes on.

    Raises:
        TypeError: A name that no option has, with the nearest one.

    Example:
        >>> from mmoe.mixture import SoftmaxGate
        >>> SoftmaxGate(8, 2, 4, z_los=0.1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        TypeError: z_los: SoftmaxGate has no such option; did you mean z_loss? It has hidden, ...
    """
    shared = list(GateOptions.__annotations__)
    for name in options:
        if name not in shared:
            known = [*_own_keywords(gate), *shared]
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? It" if near else "it"
            # As Python's own of a keyword that there is not
            raise TypeError(
                f"{name}: {type(gate).__name__} has no such option; {hint} has {', '.join(known)}"
            )
    return GateSettings(**options)


def show_settings(self: nn.Module) -> str:
    """Returns what `print` shows of a gate: k, and what differs from the defaults."""
    options: Any = self.options
    own = ({"k": None} if hasattr(self, "k") else {}) | _own_keywords(self)
    settings = [(name, getattr(self, name), default) for name, default in own.items()]
    settings += [(f.name, getattr(options, f.name), f.default) for f in fields(options) if f.repr]
    # An empty list of hidden layers is the default as well, which is a tuple.
    return ", ".join(f"{name}={value}" for name, value, d in settings if value not in (d, []))


def _own_keywords(gate: nn.Module) -> dict[str, Any]:
    """The keywords that this class of gates has beside `GateOptions`, with their defaults."""
    parameters = inspect.signature(type(gate).__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


class Scored(NamedTuple):
    """Scores that gates decide by in one call.

    Attributes:
        logits_BGE: What they have learnt, over the temperature.
        values_BGE: What they pick by: the logits, or what a rule makes of them; −inf: dropped.
        own_BGE: What a rule needs again, for weights or losses.
        visibility_GE: Bool; which gate may see which expert.
        asked_BG: Bool, the gates that each row asks; None: all.
        votes: Of gates of other modules, as in `Selector.among`.
    """

    logits_BGE: Tensor
    values_BGE: Tensor
    own_BGE: Tensor | None
    visibility_GE: Tensor
    asked_BG: Tensor | None
    votes: Votes | None


# The tensor that gates have with `always` alone, and what its dimension is
ROUTED_SHARE = "routed_share_G"
SHARE_AXES: Mapping[str, Mapping[int, str]] = {ROUTED_SHARE: {0: "gates"}}


class LearnedGate(nn.Module):
    """Gates that learn how much they want each expert: the k best, or all by their softmax.

    What a kind of gate does otherwise is its rule, of four methods: `scores` makes logits of what
    is read, `values` what is picked by (with noise, or a bias), `pick` picks and weighs, and
    `losses` says what trains the gates beside the model's loss.

    Args:
        input_dim: Width of what the gates read; None: `scores` makes the logits itself.
        num_gates: G.
        num_experts: E.
        options: See `GateOptions`.
        k: Experts that one gate picks for one sample; None: it weighs all.
        softmax: With k, over what was picked (`after` the selection) or over all (`before` it).
        selection: With k, how the gates of a row decide together; None: each picks its own k.

    Raises:
        ValueError: A setting out of range, with its name.
        TypeError: An option that there is not.
    """

    takes_rows = True
    heeds_selection: ClassVar = True  # said by every class that has a `pick` of its own
    k: int | None  # experts that a gate mixes, those of every row among them; None: all
    picks: int | None  # those that it picks
    logits: GateLogits
    routed_share_G: nn.Parameter | None

    def __init__(
        self,
        input_dim: int | None,
        num_gates: int,
        num_experts: int,
        options: GateOptions,
        *,
        k: int | None = None,
        softmax: Softmax = "after",
        selection: Selection | None = None,
    ) -> None:
        super().__init__()
        self.options = gate_settings(self, options)
        check_at_least_1(num_gates=num_gates, num_experts=num_experts)
        if input_dim is not None:
            self.logits = GateLogits(
                input_dim,
                num_gates,
                num_experts,
                hidden=self.options.hidden,
                shared=self.options.shared_logits,
            )
        elif self.options.shared_logits:
            raise ValueError(
                f"shared_logits: expected False of {type(self).__name__}, whose logits are no "
                "product with its inputs, got True"
            )
        if k is not None:
            check_k(k, num_experts)
        check_softmax(softmax)
        self.sizes = num_gates, num_experts
        self.k = self.picks = k
        self.softmax: Softmax = softmax
        self.selection = selection
        self.register_parameter("routed_share_G", None)
        if k is not None and selection is not None:
            self.select = Selector(num_gates, num_experts, k=k, selection=selection)
            self.traits = self.select.traits(num_gates)
        if self.options.always:
            self._add_always(k)

    def _add_always(self, k: int | None) -> None:
        """Takes the first experts for every row."""
        (num_gates, num_experts), always = self.sizes, self.options.always
        if k is None or not 1 <= always <= num_experts - k:
            most = "0, as these gates pick none"
            if k is not None:
                most = f"0 to {num_experts - k} (experts less picks)"
            raise ValueError(f"always: expected {most}, got {always}")
        self.k = k + always
        self.traits = _beside(
            always, self.traits if self.selection is not None else GateTraits(k=k)
        )
        start_G = torch.full((num_gates,), float(self.options.routed_start))
        self.routed_share_G = nn.Parameter(start_G)

    def forward(
        self,
        inputs: Sequence[Tensor],
        visibility_GE: Tensor,
        rows: Inputs | None = None,
        votes: Votes | None = None,
    ) -> GateOutput:
        """Weighs the experts that each gate sees, 0 exactly for others, or picks, best first."""
        check_sizes(self.sizes, inputs, visibility_GE)
        logits_BGE, asked_BG = self.scores(inputs, rows), None if rows is None else rows.asked_BG
        values_BGE, own_BGE = self.values(logits_BGE, inputs)
        routed_GE = visibility_GE
        if self.options.always:
            routed_GE = self._routed(visibility_GE)
        # Behind `values`: a rule may make a number of −inf, as a sigmoid does, and pick it again
        if self.training and self.options.dropout:
            values_BGE = self.options.drop(values_BGE, routed_GE)
        scored = Scored(logits_BGE, values_BGE, own_BGE, routed_GE, asked_BG, votes)
        weights, experts = self.pick(scored)
        found = self.losses(scored, weights, experts) if self.training else {}
        if experts is not None and self.options.always:
            weights, experts = self._with_always(scored, visibility_GE, weights, experts)
        return GateOutput(weights, experts, found)

    def _routed(self, visibility_GE: Tensor) -> Tensor:
        """What picks are made among: what is seen, less the experts of every row."""
        return F.pad(visibility_GE[:, self.options.always :], (self.options.always, 0))

    def _with_always(
        self, scored: Scored, visibility_GE: Tensor, weights_BGK: Tensor, experts_BGK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Puts the experts of every row before the picks, and their softmax before the weights."""
        always, options = self.options.always, self.options
        seen_GA, logits_BGA = visibility_GE[:, :always], scored.logits_BGE[..., :always]
        if self.training and options.dropout:
            logits_BGA = options.drop(logits_BGA, seen_GA)
        weighed_GA = seen_GA | ~seen_GA.any(1, keepdim=True)  # of what sees none all, and then 0
        weights_BGA = visible_softmax(logits_BGA, weighed_GA)
        check_numbers(weights_BGA, logits_BGA, weighed_GA)
        weights_BGA = weights_BGA.masked_fill(~seen_GA, 0)
        numbers_A = torch.arange(always, dtype=experts_BGK.dtype, device=experts_BGK.device)
        experts_BGA = numbers_A.where(seen_GA, -1).expand(weights_BGA.shape)
        share_G = self.routed_share_G
        assert share_G is not None, "there are experts of every row"
        # Not below 0, and with a gradient there, which a clamp alone would stop for good
        share_G1 = (share_G + (share_G.clamp(min=0) - share_G).detach()).unsqueeze(1)
        return (
            torch.cat([weights_BGA, share_G1 * weights_BGK], dim=2),
            torch.cat([asked_picks(experts_BGA, scored.asked_BG), experts_BGK], dim=2),
        )

    def scores(self, inputs: Sequence[Tensor], rows: Inputs | None) -> Tensor:
        """Computes `logits_BGE`, over the temperature, for rows with their domains, or without.

        Args:
            inputs: One `x_BD` for all gates, or one for each.
            rows: Domains of the rows, and the gates that they ask; None: all gates of one domain.
        """
        return self.options.temper(self.logits(inputs, rows))

    def values(self, logits_BGE: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Returns the values that picks are made by, and what the rule needs again.

        Args:
            logits_BGE: As of `scores`.
            inputs: That they were computed from.
        """
        return logits_BGE, None

    def pick(self, scored: Scored) -> tuple[Tensor, Tensor | None]:
        """Returns weights of all experts and None, or of picks, and these."""
        _, values_BGE, _, visibility_GE, asked_BG, votes = scored
        if self.picks is None:
            weights_BGE = visible_softmax(values_BGE, visibility_GE)
            check_numbers(weights_BGE, scored.logits_BGE, visibility_GE)
            return weights_BGE, None
        if self.selection is not None:
            return self.select(values_BGE, visibility_GE, asked_BG, self.softmax, votes)
        weights_BGK, experts_BGK = topk_gate(
            values_BGE, visibility_GE, self.picks, softmax=self.softmax
        )
        return weights_BGK, asked_picks(experts_BGK, asked_BG)

    def losses(
        self,
        scored: Scored,
        weights: Tensor,
        experts_BGK: Tensor | None,
        probabilities_BGE: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Computes the auxiliary losses of a training step that the options ask for.

        Args:
            scored: What was decided by; what dropout took from the values counts in the logits.
            weights: What was decided.
            experts_BGK: The picks whose number is the load, or, where gates decide together, that
                of distinct pairs of row and expert; None: the probabilities are the load.
            probabilities_BGE: Of every expert; default: the softmax of the logits.
        """
        options, result = self.options, {}
        logits_BGE, _, _, visibility_GE, asked_BG, _ = scored
        if options.z_loss:
            loss = losses.z_loss(logits_BGE, visibility_GE, options.ranks, asked_BG)
            result["z_loss"] = options.z_loss * loss
        if options.balance_loss:
            if probabilities_BGE is None:
                probabilities_BGE = visible_softmax(logits_BGE, visibility_GE)
            result["balance_loss"] = options.balance(
                losses.where_asked(probabilities_BGE, asked_BG),
                visibility_GE,
                experts_BGK,
                together=self.selection is not None,
            )
        return result

    def wanted(
        self, inputs: Sequence[Tensor], visibility_GE: Tensor, rows: Inputs | None = None
    ) -> Tensor:
        """Computes how much each gate alone would weigh every expert that it may pick.

        Args:
            inputs: One `x_BD` for all gates, or one for each.
            visibility_GE: Bool; others weigh 0.
            rows: As for `scores`.
        """
        seen_GE = self._routed(visibility_GE) if self.options.always else visibility_GE
        return visible_softmax(self.scores(inputs, rows), seen_GE)

    def within(self, budget: int, visibility_GE: Tensor) -> Self:
        """Returns these gates, weights and all, choosing at most `budget` experts for a row.

        They decide together (`Selection.within`); each mixes its k best of the experts chosen, or
        all of them where it weighs all experts, by the softmax over these.

        Args:
            budget: From 1 on.
            visibility_GE: Bool, which gate sees which expert.

        Raises:
            ValueError: The budget has no room for every gate, or a kind's own `pick` heeds none.
        """
        decides = next(vars(kind) for kind in type(self).__mro__ if "pick" in vars(kind))
        if not decides.get("heeds_selection"):
            raise ValueError(
                f"gates of {type(self).__name__}, whose `pick` heeds no selection; set "
                "heeds_selection = True where it does"
            )
        num_gates, num_experts = self.sizes
        always = self.options.always
        if budget <= always:
            raise ValueError(
                f"gates that mix {always} experts for every row beside what they pick; set "
                f"{always + 1} or more"
            )
        trained = self.selection or Selection(private_k=self.picks or num_experts)
        selection = trained.within(budget - always, visibility_GE[:, always:])
        if selection is None:
            return self
        bounded = copy.copy(self)
        bounded._modules = dict(self._modules)  # which the copy shares otherwise
        bounded.picks, bounded.selection = selection.k, selection
        select = Selector(num_gates, num_experts, k=selection.k, selection=selection, bounded=True)
        bounded.select = select.to(visibility_GE.device).eval()
        bounded.traits = _beside(always, bounded.select.traits(num_gates))
        bounded.k = bounded.traits.k
        return bounded

    def add_domains(self, num_domains: int) -> None:
        """Gives each domain gates of its own, as `GateLogits.add_domains` does."""
        self.logits.add_domains(num_domains)

    def extra_repr(self) -> str:
        """Returns what `print` shows: k, and what differs from the defaults."""
        return show_settings(self)


def _beside(always: int, traits: GateTraits) -> GateTraits:
    """Returns the traits of gates that mix so many experts for every row beside their picks."""
    return replace(
        traits,
        k=(traits.k or 0) + always,
        shared_k=traits.shared_k + always,
        most_pairs=None if traits.most_pairs is None else traits.most_pairs + always,
    )


def check_at_least_1(**sizes: int) -> None:
    """Refuses sizes below 1, by their names."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: expected 1 or more, got {size}")


def check_k(k: int, num_experts: int) -> None:
    """Refuses a number of picks that no row can have."""
    if not isinstance(k, int) or isinstance(k, bool):
        raise ValueError(f"k: expected a whole number, got {k!r}")
    if not 1 <= k <= num_experts:
        raise ValueError(f"k: expected 1 to {num_experts} (the number of experts), got {k}")


def check_softmax(softmax: str) -> None:
    """Refuses another order of softmax and selection."""
    if softmax not in ("before", "after"):
        raise ValueError(f"softmax: expected 'before' or 'after', got {softmax!r}")


def check_coefficient(name: str, value: float) -> None:
    """Refuses a loss coefficient, or another scale, that is negative or not finite."""
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}: expected a finite number of 0 or more, got {value}")


def check_share(name: str, value: float) -> None:
    """Refuses a share that is no probability below 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name}: expected a number in [0, 1), got {value}")
