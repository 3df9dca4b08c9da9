"""A product of experts in Triton as a contestant: ScatterMoE's, where that package is installed."""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.clock import Call
from benchmarks.gpu_check.contest import Layer, expert_of_rows

NAME = "scattermoe"


def scattermoe(sets: Sequence[Layer], fused: bool) -> tuple[dict[str, Call], dict[str, str]]:
    """Its product of rows that lie sorted already, and why it is no contestant where it is none.

    Args:
        sets: Of tensors.
        fused: With bias and ReLU, by which it adds the bias within the product if it can.
    """
    if not sets[0].x_PD.is_cuda:
        return {}, {NAME: "a Triton kernel needs a GPU"}
    try:
        linear = importlib.import_module(f"{NAME}.parallel_experts").parallel_linear
        takes = inspect.signature(linear).parameters
        given = [_arguments(own, takes) for own in sets]
    # What a package of any version throws while it is imported must not cost the others
    except Exception as error:
        return {}, {NAME: f"{type(error).__name__}: {str(error)[:200]}"}
    return {NAME: _call(sets, given, linear, fused)}, {}


def _arguments(own: Layer, takes: Any) -> dict[str, Any]:
    """As its versions name them: rows are in order, so each is its own place."""
    experts_P = expert_of_rows(own)
    given: dict[str, Any] = {
        "k": 1,
        "sorted_expert_idxs": experts_P,
        "sorted_scattered_idxs": torch.arange(len(experts_P), device=experts_P.device),
        "expert_offsets": own.offsets_E1[1:].long(),
        "grouped_in": True,
        "grouped_out": True,
    }
    if "padded_block_idxs" in takes:  # of earlier versions
        kernels = importlib.import_module(f"{NAME}.kernels.ops")
        blocks, offsets = kernels.padded_block_indices(experts_P, len(own.weight_EDH))
        given |= {"padded_block_idxs": blocks, "expert_offsets": offsets}
    return given


def _call(
    sets: Sequence[Layer],
    given: Sequence[dict[str, Any]],
    linear: Callable[..., Tensor],
    fused: bool,
) -> Call:
    within = fused and "expert_biases" in inspect.signature(linear).parameters
    experts = [expert_of_rows(own) for own in sets] if fused and not within else []

    def call(n: int) -> object:
        own = sets[n]
        bias = {"expert_biases": own.bias_EH} if within else {}
        y_PH = linear(own.x_PD, own.weight_EDH, **given[n], **bias)
        if experts:
            y_PH = y_PH + own.bias_EH[experts[n]]
        return y_PH.relu() if fused else y_PH

    return call
