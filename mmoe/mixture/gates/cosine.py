"""Cosine gates: experts by direction."""

import math
from collections.abc import Mapping, Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.axes import Names, Part, without
from mmoe.mixture.gates.contract import check_domains
from mmoe.mixture.gates.learned import (
    SHARE_AXES,
    GateLogits,
    GateOptions,
    LearnedGate,
    check_at_least_1,
    domain_logits,
    gate_products,
)
from mmoe.mixture.gates.select import Selection
from mmoe.mixture.inputs import Inputs
from mmoe.ops import Softmax

# Tutel's numbers, both temperatures: where the learned one starts, and what it stays above.
_START_TEMPERATURE = 0.5
_LOWEST_TEMPERATURE = 0.01


class CosineGate(LearnedGate):
    """Top-k gates by direction: `logit_e = cos(P_g x, v_e) / τ_g`, with a learned temperature τ.

    Logits stay within ±1 / τ however long x is. τ starts at 0.5 and is kept above 0.01. Gates of
    domains have directions and temperatures of their own, `v_e + u_me` and `τ_g · exp(−t_m)`, of
    one projection; u and t are 0 at first.

    Args:
        input_dim: Width of what the gates read.
        num_gates: G.
        num_experts: E.
        k: Experts that one gate picks for one sample.
        projection_dim: Width of `P_g x`.
        softmax: `after` the selection or `before` it, as in `TopKGate`.
        selection: How the gates of a row decide together, as in `TopKGate`.
        **options: See `GateOptions`. The MLP of `hidden` comes before the projection, and
            `temperature` divides the logits beside τ.

    Raises:
        ValueError: A setting out of range; in forward, more picks than a gate sees experts, or NaN
            logits (on the CPU).

    Example:
        >>> import torch
        >>> from mmoe.mixture import CosineGate
        >>> gate, x_BD = CosineGate(8, num_gates=2, num_experts=4, k=2), torch.randn(3, 8)
        >>> gate([x_BD, x_BD], torch.ones(2, 4, dtype=torch.bool)).experts.shape
        torch.Size([3, 2, 2])

    Source: Chi et al., "On the representation collapse of sparse mixture of experts" (NeurIPS
        2022), section 3, as in Tutel (Hwang et al., MLSys 2023), gates/cosine_top.py.
    """

    own_directions_GMEP: nn.Parameter | None
    own_log_scale_GM: nn.Parameter | None

    def __init__(
        self,
        input_dim: int,
        num_gates: int,
        num_experts: int,
        *,
        k: int,
        projection_dim: int = 256,
        softmax: Softmax = "after",
        selection: Selection | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(
            None, num_gates, num_experts, options, k=k, softmax=softmax, selection=selection
        )
        check_at_least_1(projection_dim=projection_dim)
        self.projection = GateLogits(
            input_dim, num_gates, projection_dim, hidden=self.options.hidden
        )
        self.directions_GEP = nn.Parameter(torch.empty(num_gates, num_experts, projection_dim))
        # Its logarithm is learned: no step makes the temperature negative
        self.log_scale_G = nn.Parameter(torch.empty(num_gates))
        self.projection_dim = projection_dim
        self.register_parameter("own_directions_GMEP", None)
        self.register_parameter("own_log_scale_GM", None)
        nn.init.normal_(self.directions_GEP, std=0.01)
        nn.init.constant_(self.log_scale_G, -math.log(_START_TEMPERATURE))

    def axes(self) -> Mapping[str, Mapping[int, str]]:
        """Returns what the dimensions of its own tensors are."""
        return {
            **SHARE_AXES,
            "directions_GEP": {0: "gates", 1: "experts"},
            "log_scale_G": {0: "gates"},
            "own_directions_GMEP": {0: "gates", 1: "domains", 2: "experts"},
            "own_log_scale_GM": {0: "gates", 1: "domains"},
        }

    def named_parts(self, names: Names) -> list[Part]:
        """Says that what the projection returns are no logits of experts."""
        return [Part("projection", ("projection",), without(names, "experts"))]

    def add_domains(self, num_domains: int) -> None:
        """Gives each domain directions and temperatures of its own, beside what they share."""
        # Zeros: domains with few rows begin with what all have learnt together
        num_gates, *sizes = self.directions_GEP.shape
        zeros_GMEP = self.directions_GEP.detach().new_zeros(num_gates, num_domains, *sizes)
        self.own_directions_GMEP = nn.Parameter(zeros_GMEP)
        self.own_log_scale_GM = nn.Parameter(zeros_GMEP[..., 0, 0].clone())

    def scores(self, inputs: Sequence[Tensor], rows: Inputs | None) -> Tensor:
        """Computes the cosines over τ, and over the temperature."""
        check_domains(self.own_directions_GMEP, rows)
        # In fp32: a rounded logit sends a row to another expert
        with torch.autocast(inputs[0].device.type, enabled=False):
            projected_BGP = F.normalize(self.projection(inputs), dim=-1)
            if rows is None or self.own_directions_GMEP is None:
                return self.options.temper(self._logits(projected_BGP))
            return self.options.temper(self._domain_logits(projected_BGP, rows))

    def _logits(self, projected_BGP: Tensor) -> Tensor:
        dtype = projected_BGP.dtype
        directions_GEP = F.normalize(self.directions_GEP.to(dtype), dim=-1)
        cosines = gate_products(projected_BGP.unbind(1), directions_GEP)
        if not isinstance(cosines, Tensor):
            cosines = torch.stack(list(cosines), dim=1)
        return cosines * _scales(self.log_scale_G.to(dtype)).unsqueeze(-1)

    def _domain_logits(self, projected_BGP: Tensor, rows: Inputs) -> Tensor:
        """Likewise, by what each domain has; of no domain the mean of the domains' logits."""
        dtype, own_GMEP, own_GM = (
            projected_BGP.dtype,
            self.own_directions_GMEP,
            self.own_log_scale_GM,
        )
        assert own_GMEP is not None and own_GM is not None, "there are domains"
        directions_GMEP = F.normalize(
            (self.directions_GEP.unsqueeze(1) + own_GMEP).to(dtype), dim=-1
        )
        scale_GM = _scales((self.log_scale_G.unsqueeze(1) + own_GM).to(dtype))
        # Scaled first: what is left is linear in them, so that their mean gives the logits' mean
        scaled_GMEP = directions_GMEP * scale_GM[..., None, None]
        scaled_GNEP = torch.cat([scaled_GMEP, scaled_GMEP.mean(1, keepdim=True)], dim=1)
        return domain_logits(projected_BGP.unbind(1), scaled_GNEP.unbind(0), rows)


def _scales(log_scale: Tensor) -> Tensor:
    """`1 / τ`, which stays below that of the lowest temperature."""
    return log_scale.clamp(max=-math.log(_LOWEST_TEMPERATURE)).exp()
