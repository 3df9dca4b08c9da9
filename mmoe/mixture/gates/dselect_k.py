"""DSelect-k gates: a selection that is smooth while it is learned, and sparse in the end."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part, without
from mmoe.mixture.gates.contract import (
    GateOutput,
    check_domains,
    check_numbers,
    check_sizes,
    rows_and_dtype,
)
from mmoe.mixture.gates.learned import (
    GateLogits,
    GateOptions,
    check_at_least_1,
    check_coefficient,
    check_k,
    gate_settings,
    show_settings,
)
from mmoe.mixture.gates.losses import mean, where_asked, z_loss
from mmoe.mixture.gates.static import check_blind
from mmoe.mixture.inputs import Inputs, of_each_domain

# Inside the logarithm of the entropy, as in the authors' code.
ENTROPY_EPSILON = 1e-6
# Below this share of experts that exist, the loss for codes goes on as a straight line: 1 / 0 would
# end the training.
_LOWEST_REACH = 0.05


class DSelectKGate(nn.Module):
    """Gates of k selectors that settle, smoothly, on one expert each.

    Selector j reads the number of its expert off M = ⌈log₂ E⌉ learned switches z, bit by bit:

    `w_e = Σ_j softmax(c / temperature)_j · r_j(e)`,
    `r_j(e) = Π_m S(z_jm)` over the bits of e that are 1 `· Π_m (1 − S(z_jm))` over those that are 0

    with the smooth step S: 0 up to −γ/2, 1 from γ/2 on, a cubic between. So weights become exactly
    0, at most k stay, and all is differentiable. A weight of 0 comes back as an unused pick, and
    the expert does not run for that row; at the start all of them run. The experts that a gate sees
    are numbered among themselves. Where their number is no power of two, some codes stand for no
    expert; `code_loss` keeps selectors off them, and until then weights add up to less than 1.
    Gates of domains have switches of their own, of a sum of what domains share and what is their
    own, which is 0 at first; rows of no domain have the mean of the domains' switches.

    Args:
        input_dim: Width of what the gates read; z and c are then functions of x. None: static
            gates, whose z and c are one learned constant per task.
        num_gates: G.
        num_experts: E.
        k: Selectors, and experts in the end.
        gamma: Width of the smooth step.
        entropy_loss: Coefficient of `Σ_j H(r_j)`, which drives selectors to one expert each.
        code_loss: Coefficient of `Σ_j (1 / Σ_e r_j(e) − 1)`.
        **options: See `GateOptions`. The MLP of `hidden` is for z and c, `temperature` divides
            both, `z_loss` looks at c, and `hidden` must be empty for static gates.

    Raises:
        ValueError: A setting out of range; in forward, logits that are not finite (on the CPU in
            eager mode).

    Example:
        >>> import torch
        >>> from mmoe.mixture import DSelectKGate
        >>> gate, x_BD = DSelectKGate(None, num_gates=1, num_experts=4, k=1), torch.zeros(3, 8)
        >>> with torch.no_grad():
        ...     _ = gate.codes_GKM.copy_(torch.tensor([[[-9.0, 9.0]]]))  # 2, lowest bit first
        >>> weights, experts, _ = gate([x_BD], torch.ones(1, 4, dtype=torch.bool))
        >>> experts[0].tolist(), weights[0].tolist()
        ([[-1, -1, 2, -1]], [[0.0, 0.0, 1.0, 0.0]])

    Source: Hazimeh et al., "DSelect-k: Differentiable selection in the mixture of experts with
        applications to multi-task learning" (NeurIPS 2021), section 3; the authors' code
        (google-research, dselect_k_moe) for the starting values and both losses, which are means
        over rows and gates here.
    """

    own_codes_GMKB: nn.Parameter | None
    own_choice_GMK: nn.Parameter | None

    takes_rows = spells_numbers = True
    extra_repr = show_settings

    def __init__(
        self,
        input_dim: int | None,
        num_gates: int,
        num_experts: int,
        *,
        k: int,
        gamma: float = 1.0,
        entropy_loss: float = 0.01,
        code_loss: float = 1.0,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__()
        self.options = gate_settings(self, options)
        check_at_least_1(num_gates=num_gates, num_experts=num_experts)
        check_k(k, num_experts)
        if not 0 < gamma < float("inf"):
            raise ValueError(f"gamma: expected a number above 0, got {gamma}")
        check_coefficient("entropy_loss", entropy_loss)
        check_coefficient("code_loss", code_loss)
        self.num_gates, self.num_experts = num_gates, num_experts
        self.k = k
        self.num_bits = (num_experts - 1).bit_length()
        self.gamma = gamma
        self.entropy_loss = entropy_loss
        self.code_loss = code_loss
        if input_dim is None:
            check_blind(self.options)
            self.logits = None
            self.codes_GKM = nn.Parameter(torch.empty(num_gates, k, self.num_bits))
            self.choice_GK = nn.Parameter(torch.empty(num_gates, k))
        else:
            self.logits = GateLogits(
                input_dim,
                num_gates,
                k * (self.num_bits + 1),
                hidden=self.options.hidden,
                output_bias=True,
            )
        self.register_parameter("own_codes_GMKB", None)
        self.register_parameter("own_choice_GMK", None)
        self.reset_parameters()

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its own tensors are: codes spell the experts' numbers."""
        own = {0: "gates", 1: "domains"}
        return {"codes_GKM": {0: "gates"}, "choice_GK": {0: "gates"},
                "own_codes_GMKB": own, "own_choice_GMK": own}  # fmt: skip

    def named_parts(self, names: Names) -> list[Part]:
        """Says that what the logits are of are no experts, but bits of their numbers."""
        own = without(names, "experts")
        return [] if self.logits is None else [Part("logits", ("logits",), own)]

    def reset_parameters(self) -> None:
        """Draws new weights from torch's generator; switches start near the middle."""
        if self.logits is None:
            parts = [(self.codes_GKM, self.choice_GK)]
        else:
            self.logits.reset_parameters()
            sizes = [self.k * self.num_bits, self.k]
            parts = [
                self.logits.weights[-1].detach().split(sizes, dim=1),
                self.logits.biases[-1].detach().split(sizes, dim=1),
            ]
        for codes, choice in parts:
            nn.init.uniform_(codes, -self.gamma / 100, self.gamma / 100)
            nn.init.uniform_(choice, -0.05, 0.05)

    def add_domains(self, num_domains: int) -> None:
        """Gives each domain switches of its own, beside what they share."""
        if self.logits is not None:
            self.logits.add_domains(num_domains)
            return
        for name, shared in (("codes_GMKB", self.codes_GKM), ("choice_GMK", self.choice_GK)):
            zeros = shared.detach().new_zeros(shared.shape[0], num_domains, *shared.shape[1:])
            self.register_parameter(f"own_{name}", nn.Parameter(zeros))

    def forward(
        self, inputs: Sequence[Tensor], visibility_GE: Tensor, rows: Inputs | None = None
    ) -> GateOutput:
        """Returns E picks in the order of the experts, unused where the weight is 0."""
        check_sizes((self.num_gates, self.num_experts), inputs, visibility_GE)
        codes_BGKM, choice_BGK = self._switches(inputs, visibility_GE, rows)
        asked_BG = None if rows is None else rows.asked_BG
        alike = self.logits is None and self.own_codes_GMKB is None
        if alike and asked_BG is not None:  # each row counts with the gates that it asks
            codes_BGKM = codes_BGKM.expand(len(asked_BG), -1, -1, -1)
            choice_BGK, alike = choice_BGK.expand(len(asked_BG), -1, -1), False
        selectors_BGKC = selectors(codes_BGKM / self.gamma, visibility_GE)
        shares_BGK = choice_BGK.softmax(dim=-1)
        # A sum in a fixed order: one over a dimension depends on where the row stands.
        weights_BGC = selectors_BGKC[:, :, 0] * shares_BGK[:, :, :1]
        for j in range(1, self.k):
            weights_BGC = weights_BGC + selectors_BGKC[:, :, j] * shares_BGK[:, :, j : j + 1]
        # The experts that a gate sees are numbered among themselves: that number is the code
        places_GE = (visibility_GE.cumsum(1) - 1).clamp(min=0)
        weights_BGE = weights_BGC.gather(-1, places_GE.expand(weights_BGC.shape[0], -1, -1))
        weights_BGE = weights_BGE.masked_fill(~visibility_GE, 0)
        losses = {}
        if self.training:
            losses = self._losses(selectors_BGKC, choice_BGK, weights_BGE, visibility_GE, asked_BG)
        if alike:
            # One row stands for all, and its losses for theirs: of a batch without rows they are 0
            height, _ = rows_and_dtype(inputs)
            weights_BGE = weights_BGE.expand(height, -1, -1)
            (all_rows,) = self.options.ranks.of_losses(height)
            some = all_rows > 0 if isinstance(all_rows, Tensor) else torch.sym_min(all_rows, 1)
            losses = {name: loss * some for name, loss in losses.items()}
        weights_BGE = self.options.drop_weights(weights_BGE, self.training)
        numbers_E = torch.arange(
            visibility_GE.shape[1], dtype=torch.int32, device=weights_BGE.device
        )
        return GateOutput(weights_BGE, torch.where(weights_BGE > 0, numbers_E, -1), losses)

    def _switches(
        self, inputs: Sequence[Tensor], visibility_GE: Tensor, rows: Inputs | None
    ) -> tuple[Tensor, Tensor]:
        """Z and c over the temperature; static gates without domains have one row."""
        if self.logits is None:
            check_domains(self.own_codes_GMKB, rows)
            _, dtype = rows_and_dtype(inputs)
            pairs = (self.codes_GKM, self.own_codes_GMKB), (self.choice_GK, self.own_choice_GMK)
            codes_BGKM, choice_BGK = (_of_rows(one, own, rows, dtype) for one, own in pairs)
        else:
            both_BGN = self.logits(inputs, rows)
            check_numbers(both_BGN, both_BGN, visibility_GE)
            codes_BGN, choice_BGK = both_BGN.split([self.k * self.num_bits, self.k], dim=-1)
            codes_BGKM = codes_BGN.unflatten(-1, (self.k, self.num_bits))
        return self.options.temper(codes_BGKM), self.options.temper(choice_BGK)

    def _losses(
        self,
        selectors_BGKC: Tensor,
        choice_BGK: Tensor,
        weights_BGE: Tensor,
        visibility_GE: Tensor,
        asked_BG: Tensor | None,
    ) -> dict[str, Tensor]:
        result, options = {}, self.options
        seen_G11 = visibility_GE.sum(1).view(-1, 1, 1)
        codes_C = torch.arange(selectors_BGKC.shape[-1], device=selectors_BGKC.device)
        # Codes from n_g on stand for no expert of the gate
        reachable_BGKC = selectors_BGKC.masked_fill(codes_C >= seen_G11, 0)
        if self.entropy_loss:
            logs_BGKC = (reachable_BGKC + ENTROPY_EPSILON).log()
            entropies_BG = -(reachable_BGKC * logs_BGKC).sum((-2, -1))
            result["entropy_loss"] = self.entropy_loss * mean(entropies_BG, options.ranks, asked_BG)
        if self.code_loss:
            reach_BGK = reachable_BGKC.sum(-1)
            floored_BGK = reach_BGK.clamp(min=_LOWEST_REACH)
            # The tangent of 1 / x at the lowest reach
            below_BGK = (floored_BGK - reach_BGK) / _LOWEST_REACH**2
            wasted_BG = (1 / floored_BGK + below_BGK - 1).sum(-1)
            result["code_loss"] = self.code_loss * mean(wasted_BG, options.ranks, asked_BG)
        if options.z_loss:
            all_GK = visibility_GE.new_ones(choice_BGK.shape[1:])
            result["z_loss"] = options.z_loss * z_loss(choice_BGK, all_GK, options.ranks, asked_BG)
        if options.balance_loss:
            asked_BGE = where_asked(weights_BGE, asked_BG)
            result["balance_loss"] = options.balance(asked_BGE, visibility_GE, None)
        return result


def selectors(codes_BGKM: Tensor, visibility_GE: Tensor) -> Tensor:
    """Returns the weight that each selector gives each code, `r_BGKC`; C = 2^M add up to 1.

    Args:
        codes_BGKM: Switches, lowest bit first, over γ.
        visibility_GE: Bool. Bits that no expert of a gate needs are 0 for that gate.

    Example:
        >>> import torch
        >>> switches = torch.tensor([[[[-0.5, 0.0]]]])  # lowest bit 0, highest undecided
        >>> selectors(switches, torch.ones(1, 4, dtype=torch.bool)).flatten().tolist()
        [0.5, 0.0, 0.5, 0.0]
    """
    # Both sides by the same formula: 1 − S would round, and leave −1e-8 where there should be 0.
    ones_BGKM, zeros_BGKM = _smooth_step(0.5 + codes_BGKM), _smooth_step(0.5 - codes_BGKM)
    num_bits = codes_BGKM.shape[-1]
    bits_M = torch.arange(num_bits, device=codes_BGKM.device)
    last_G1 = (visibility_GE.sum(1, keepdim=True) - 1).clamp(min=0)
    # Of a bit that no number has, weight on 1 would be weight on no expert
    unused_G1M = ((last_G1 >> bits_M) == 0).unsqueeze(1)
    ones_BGKM = ones_BGKM.masked_fill(unused_G1M, 0)
    zeros_BGKM = zeros_BGKM.masked_fill(unused_G1M, 1)
    result_BGKC = codes_BGKM.new_ones(*codes_BGKM.shape[:-1], 1)
    # The highest bit first, so that a column's number is its code
    for m in reversed(range(num_bits)):
        bit_BGK2 = torch.stack([zeros_BGKM[..., m], ones_BGKM[..., m]], dim=-1)
        result_BGKC = (result_BGKC.unsqueeze(-1) * bit_BGK2.unsqueeze(-2)).flatten(-2)
    return result_BGKC


def _of_rows(
    shared_GX: Tensor, own_GMX: Tensor | None, rows: Inputs | None, dtype: torch.dtype
) -> Tensor:
    """Returns static gates' entries for each row's domain; without domains one row for all."""
    shared_GX = shared_GX.to(dtype)
    if own_GMX is None or rows is None:
        return shared_GX[None]
    own_MGX = own_GMX.transpose(0, 1).to(dtype)
    return rows.domain_values(of_each_domain(shared_GX, own_MGX))


def _smooth_step(u: Tensor) -> Tensor:
    """0 up to 0, 1 from 1 on, `3u² − 2u³` between; never below 0."""
    u = u.clamp(0, 1)
    return u * u * (3 - 2 * u)
