"""Settings of `MLPExperts`, and what they may be."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from mmoe.mixture.experts.norm import ExpertNorm

ExpertActivation = Literal["relu", "gelu", "silu", "swiglu"]
# Of the last layer; None: it has none
OutputActivation = Literal["same", "relu", "gelu", "silu", "swiglu"] | None


def check_mlp_experts(
    num_experts: int,
    input_dim: int,
    hidden: Sequence[int],
    activation: str,
    output_activation: str | None,
    norm: str | None,
    dropouts: Mapping[str, float],
) -> None:
    """Refuses settings out of range, by their names."""
    if num_experts < 1:
        raise ValueError(f"num_experts: expected 1 or more, got {num_experts}")
    if input_dim < 1:
        raise ValueError(f"input_dim: expected a width of 1 or more, got {input_dim}")
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden: expected widths of 1 or more, got {list(hidden)}")
    for name, value, known in (
        ("activation", activation, get_args(ExpertActivation)),
        ("output_activation", output_activation, (None, "same", *get_args(ExpertActivation))),
        ("norm", norm, (None, *get_args(ExpertNorm))),
    ):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(map(str, known))}, got {value!r}")
    for name, dropout in dropouts.items():
        if not 0 <= dropout < 1:
            raise ValueError(f"{name}: expected a probability in [0, 1), got {dropout}")
