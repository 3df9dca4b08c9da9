"""The gate of a converted layer: by its kind, by its section of a config, or made by a function."""

import copy
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, cast

import torch
from pydantic import ValidationError
from torch import nn

from mmoe.config import GATES, GateConfig, ModelConfig
from mmoe.mixture import GateOutput, GateTraits, traits_of
from mmoe.mixture.checks import check_gate
from mmoe.mixture.gates.learned import GateLogits
from mmoe.models.sections import build_gate
from mmoe.process_settings import borrowed_generators

GateMaker = Callable[[int, int, int], nn.Module]
GateSetting = str | Mapping[str, Any] | GateMaker

# Of the logits' weights at the start, as in sparse upcycling: every expert is nearly as likely
_STD = 0.02
_DEFAULT_K = 2
_ROWS = 256


def gate_maker(gate: GateSetting, k: int, num_experts: int) -> GateMaker:
    """Returns what makes the gate of each layer, as `maker(input_dim, num_gates, num_experts)`.

    Args:
        gate: A kind (`top_k`), a section of a config (`{"kind": "top_k", "z_loss": 0.001}`), or
            such a maker itself.
        k: Picks of a row, for gates that take them.
        num_experts: E.

    Raises:
        ValueError: No such kind or key, or a k that the gate cannot pick.
    """
    if isinstance(gate, nn.Module) or not (callable(gate) or isinstance(gate, str | Mapping)):
        raise ValueError(
            "gate: expected a kind as 'top_k', a section as {'kind': 'top_k', …}, or a function "
            "(input_dim, num_gates, num_experts) that makes each layer's, got a "
            f"{type(gate).__name__}"
        )
    if not isinstance(gate, str | Mapping):
        if k != _DEFAULT_K:
            raise ValueError(
                f"k: expected none beside a gate of your own, which picks itself, got {k}"
            )
        return gate
    config = _section({"kind": gate} if isinstance(gate, str) else dict(gate), k, num_experts)
    model = ModelConfig(num_experts=num_experts, gate=config)

    def make(input_dim: int, num_gates: int, num_experts: int) -> nn.Module:
        made = build_gate(model, input_dim, num_gates, num_experts)
        logits = _logits(made)
        if logits is not None:
            nn.init.normal_(logits.weights[-1], std=_STD)
        return made

    return make


def _section(section: dict[str, Any], k: int, num_experts: int) -> GateConfig:
    kind = section.get("kind", "top_k")
    if not GATES.knows(kind):
        near = get_close_matches(str(kind), GATES.names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"gate: {hint}expected one of {', '.join(GATES.names())}, got {kind!r}")
    takes_k = "k" in GATES.config_class(kind).model_fields
    if takes_k and section.setdefault("k", k) != k and k != _DEFAULT_K:
        raise ValueError(f"k: expected {section['k']}, as in gate, got {k}; say it once")
    try:
        config = GATES.validate({"kind": kind, **section})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"gate: {key + ': ' if key else ''}{first['msg']}") from None
    picks = config.picks
    if not takes_k and k not in (_DEFAULT_K, picks):
        number = "all experts" if picks is None else picks
        raise ValueError(f"k: a {kind} gate weighs {number}, got {k}; leave k out")
    if picks is not None and picks > num_experts:
        raise ValueError(
            f"k: expected 1 to {num_experts}, the number of experts, got {picks}; lower k, or "
            "raise num_experts"
        )
    return config


def make_gate(maker: GateMaker, width: int, num_experts: int, slices: int) -> nn.Module:
    """Makes the gate of one layer, on the CPU, so that a seed gives the same on every device.

    Args:
        maker: From `gate_maker`.
        width: D.
        num_experts: E.
        slices: S: experts e and e + 1 are parts of one dense layer, S of them make it. Where the
            gate picks a multiple of S, or all, those of one layer start alike, so that a row gets
            all of it.
    """
    with torch.device("cpu"):
        gate = maker(width, 1, num_experts)
    check_gate(gate)
    logits, k = _logits(gate), traits_of(gate, GateTraits).k
    picks = k if isinstance(k, int) else num_experts
    if slices > 1 and picks % slices == 0 and logits is not None:
        with torch.no_grad():
            last_GED = logits.weights[-1]
            last_GED.copy_(last_GED[:, ::slices].repeat_interleave(slices, dim=1))
    return gate


def check_sums(gate: nn.Module, width: int, num_experts: int) -> None:
    """Refuses a gate whose weights do not add up to 1: then copies are not the dense network.

    Asked of the gate itself, on rows drawn apart from the caller's generators.

    Raises:
        ValueError: Says what they add up to.
    """
    asked = copy.deepcopy(gate)  # some count what they picked
    generator = torch.Generator().manual_seed(0)
    x_BD = torch.randn(_ROWS, width, generator=generator)
    visible_GE = torch.ones(1, num_experts, dtype=torch.bool)
    for training in (True, False):
        with torch.no_grad(), borrowed_generators():
            decision = cast(GateOutput, asked.train(training)([x_BD], visible_GE))
        sums_B = decision.as_weights(num_experts).sum(-1).flatten()
        wrong = sums_B[int((sums_B - 1).abs().argmax())]
        if abs(float(wrong) - 1) > 1e-5:
            raise ValueError(
                f"gate: init='copy' needs weights that add up to 1, as of top_k and softmax, got "
                f"{type(gate).__name__}, of which a row's add up to {float(wrong):.3g}; take "
                "another gate, or init='fresh'"
            )


def _logits(gate: nn.Module) -> GateLogits | None:
    logits = getattr(gate, "logits", None)
    return logits if isinstance(logits, GateLogits) else None
