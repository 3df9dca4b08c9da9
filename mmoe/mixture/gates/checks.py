"""Checks that gates share: every failure is a ValueError on one line."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmoe.errors import NotFinite
from mmoe.mixture.pytrees import leaves_of


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


def check_sizes(sizes: Sequence[int], inputs: Sequence[Any], visibility_GE: Tensor) -> None:
    """Refuses a mixture of other sizes than the gate's, which would broadcast in silence.

    Args:
        sizes: G and E that the gate was built for.
        inputs: One per gate.
        visibility_GE: Of the mixture that calls.

    Raises:
        ValueError: Says which of the two sizes differs.
    """
    if visibility_GE.dim() != 2 or visibility_GE.dtype != torch.bool:
        raise ValueError(
            f"visibility_GE: expected bool [gates, experts], got {visibility_GE.dtype} "
            f"{list(visibility_GE.shape)}"
        )
    names = ("num_gates", "num_experts")
    for name, built, given in zip(names, sizes, visibility_GE.shape, strict=True):
        if built != given:
            raise ValueError(
                f"{name}: expected a gate built for {given}, as visibility_GE has (gates, experts) "
                f"{list(visibility_GE.shape)}, got one built for {built}"
            )
    if len(inputs) != sizes[0]:
        raise ValueError(f"inputs: expected {sizes[0]} tensors, one per gate, got {len(inputs)}")


def check_domains(own: Tensor | None, domains: object | None) -> None:
    """Refuses domains of rows for gates that have none, and the other way.

    Args:
        own: What the gates have for each domain.
        domains: Of the rows.
    """
    if (own is None) != (domains is None):
        have, came = ("no", "those of the rows") if domains is not None else ("some", "None")
        raise ValueError(f"domains: expected {have} domains, as the gates have, got {came}")


def rows_and_dtype(inputs: Sequence[Any]) -> tuple[int, torch.dtype]:
    """Returns the batch's height and dtype, all that a gate that ignores its input needs.

    Args:
        inputs: One input per gate, each a tensor, or tuples and dicts of them.

    Returns:
        The rows, and the type to compute in: fp32, or fp64 for fp64 inputs.
    """
    first = leaves_of("inputs[0]", inputs[0])[0]
    return first.shape[0], torch.promote_types(first.dtype, torch.float32)


def check_numbers(result: Tensor, logits_BGN: Tensor, visibility_GE: Tensor) -> None:
    """Refuses NaN and infinite logits, and gates that see no expert, where looking is free.

    That is on the CPU in eager mode: on a GPU the host would have to wait, and a traced tensor has
    no values. One sum over what a gate computed shows whether anything is wrong; only then it is
    worth finding out what.

    Args:
        result: What was computed from the logits; NaN where they hold NaN.
        logits_BGN: The gates' logits, of experts or of whatever else a gate decides by.
        visibility_GE: Bool.

    Raises:
        ValueError: Names the gate, and how many rows are wrong.
    """
    # Subclasses are traced or fake tensors.
    if torch.compiler.is_compiling() or type(result) is not Tensor or result.device.type != "cpu":
        return
    if bool(result.detach().sum().isfinite()):
        return
    for g, sees in enumerate(visibility_GE.any(dim=1).tolist()):
        if not sees:
            raise ValueError(
                f"visibility_GE: gate {g} sees no expert; every gate needs one or more"
            )
    for kind, wrong_BGN in (("NaN", logits_BGN.isnan()), ("infinite", logits_BGN.isinf())):
        for g, rows in enumerate(wrong_BGN.any(dim=-1).sum(dim=0).tolist()):
            if rows:
                raise NotFinite(
                    f"logits_BGE: expected finite numbers, got gate {g}: {rows} rows have {kind} "
                    "logits; look for NaN and overflow in the gate's input and parameters"
                )
