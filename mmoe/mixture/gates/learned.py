"""Base of all learned gates: their options, and one way from inputs to a decision."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, NamedTuple, TypedDict, get_args

import torch
from torch import Tensor, nn

from mmoe.mixture.gates import losses
from mmoe.mixture.gates.contract import GateOutput, check_numbers, check_sizes
from mmoe.mixture.gates.logits import GateLogits
from mmoe.mixture.gates.losses import Scope, asked_picks
from mmoe.mixture.gates.select import Selection, Selector, Votes
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.rank_sums import ONE_RANK, RankSums
from mmoe.ops import topk_gate
from mmoe.ops.gating import Softmax, visible_softmax


class GateOptions(TypedDict, total=False):
    """Keyword arguments that every learned gate takes.

    All but `hidden` may be changed between training steps, as `gate.options.z_loss = …`.

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

    Source: Dropout against polarised gates: Zhao et al., "Recommending what video to watch next"
        (RecSys 2019), with a probability of 0.1 there.
    """

    hidden: Sequence[int]
    temperature: float
    dropout: float
    z_loss: float
    balance_loss: float
    balance_scope: Scope
    ranks: RankSums


@dataclass(kw_only=True, slots=True)
class GateSettings:
    """Options of one gate, with their defaults, and what they do.

    Example:
        >>> import torch
        >>> GateSettings(temperature=2).temper(torch.ones(2))
        tensor([0.5000, 0.5000])
    """

    hidden: Sequence[int] = ()
    temperature: float = 1.0
    dropout: float = 0.0
    z_loss: float = 0.0
    balance_loss: float = 0.0
    balance_scope: Scope = "gate"
    ranks: RankSums = field(default=ONE_RANK, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature: expected a number above 0, got {self.temperature}")
        check_share("dropout", self.dropout)
        check_coefficient("z_loss", self.z_loss)
        check_coefficient("balance_loss", self.balance_loss)
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
            raise TypeError(
                f"{name}: {type(gate).__name__} has no such option; {hint} has {', '.join(known)}"
            )
    return GateSettings(**options)


def show_settings(self: nn.Module) -> str:
    """Returns what `print` shows of a gate: k, and what differs from the defaults.

    Example:
        >>> from mmoe.mixture import TopKGate
        >>> TopKGate(8, 2, 4, k=2, z_loss=0.1).extra_repr()
        'k=2, z_loss=0.1'
    """
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
    k: int | None
    logits: GateLogits

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
        for name, size in (("num_gates", num_gates), ("num_experts", num_experts)):
            if size < 1:
                raise ValueError(f"{name}: expected 1 or more, got {size}")
        if input_dim is not None:
            hidden = self.options.hidden
            self.logits = GateLogits(input_dim, num_gates, num_experts, hidden=hidden)
        if k is not None:
            check_k(k, num_experts)
        check_softmax(softmax)
        self.sizes = num_gates, num_experts
        self.k = k
        self.softmax: Softmax = softmax
        self.selection = selection
        if k is not None and selection is not None:
            self.select = Selector(num_gates, num_experts, k=k, selection=selection)
            self.traits = self.select.traits(num_gates)

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
        # Behind `values`: a rule may make a number of −inf, as a sigmoid does, and pick it again
        if self.training and self.options.dropout:
            values_BGE = self.options.drop(values_BGE, visibility_GE)
        scored = Scored(logits_BGE, values_BGE, own_BGE, visibility_GE, asked_BG, votes)
        weights, experts = self.pick(scored)
        return GateOutput(
            weights, experts, self.losses(scored, weights, experts) if self.training else {}
        )

    def scores(self, inputs: Sequence[Tensor], rows: Inputs | None) -> Tensor:
        """Computes `logits_BGE`, over the temperature, for rows with their domains, or without.

        Args:
            inputs: One `x_BD` for all gates, or one for each.
            rows: Domains of the rows, and the gates that they ask; None: all gates of one domain.
        """
        return self.options.temper(self.logits(inputs, rows))

    def values(self, logits_BGE: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Makes what is picked by of the logits; and what the rule needs again.

        Args:
            logits_BGE: As of `scores`.
            inputs: That they were computed from.
        """
        return logits_BGE, None

    def pick(self, scored: Scored) -> tuple[Tensor, Tensor | None]:
        """Returns weights of all experts and None, or of picks, and these."""
        _, values_BGE, _, visibility_GE, asked_BG, votes = scored
        if self.k is None:
            weights_BGE = visible_softmax(values_BGE, visibility_GE)
            check_numbers(weights_BGE, scored.logits_BGE, visibility_GE)
            return weights_BGE, None
        if self.selection is not None:
            return self.select(values_BGE, visibility_GE, asked_BG, self.softmax, votes)
        weights_BGK, experts_BGK = topk_gate(
            values_BGE, visibility_GE, self.k, softmax=self.softmax
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
        """Computes how much each gate alone would weigh every expert that it sees.

        Args:
            inputs: One `x_BD` for all gates, or one for each.
            visibility_GE: Bool; others weigh 0.
            rows: As for `scores`.
        """
        return visible_softmax(self.scores(inputs, rows), visibility_GE)

    def add_domains(self, num_domains: int) -> None:
        """Gives each domain gates of its own, as `GateLogits.add_domains` does."""
        self.logits.add_domains(num_domains)

    def extra_repr(self) -> str:
        """Returns what `print` shows: k, and what differs from the defaults."""
        return show_settings(self)


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
