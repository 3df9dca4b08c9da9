"""Dense or grouped: which way of running a mixture is the cheaper one."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from torch import nn

Execution = Literal["auto", "dense", "grouped"]

# The share of (sample, expert) pairs up to which grouped execution pays for its planning, gathering
# and uneven products. Measured forward + backward in fp32 over 56 settings of B, E, G and K, in CPU
# seconds of one thread (AMD EPYC, AVX-512, torch 2.13): with experts 330 → 256 → 128 grouped costs
# the dense time × (share + 0.03 to 0.14) and breaks even above 0.75; with experts 64 → 32, where
# products are cheap and gathering is not, it breaks even between 0.5 and 0.7.
MAX_GROUPED_SHARE = 0.65


def choose_execution(
    visible: Sequence[Sequence[bool]], k: int | None
) -> Literal["dense", "grouped"]:
    """Chooses by the share of (sample, expert) pairs that the gates are expected to ask for.

    Gates that pick independently and evenly leave expert e untouched by a sample with probability
    `Π_g (1 − k / n_g)` over the gates that see e, where `n_g` is how many experts gate g sees.
    Correlated gates ask for fewer pairs, so this is the dear side of grouped execution.

    Args:
        visible: Which gate sees which expert, `[G][E]`.
        k: Picks per gate and sample; None: the gates weigh all experts.

    Returns:
        `grouped` where the expected share is at most `MAX_GROUPED_SHARE`, else `dense`.

    Example:
        >>> from mmoe.mixture.execution import choose_execution
        >>> choose_execution([[True] * 64] * 4, k=2), choose_execution([[True] * 4] * 2, k=2)
        ('grouped', 'dense')
    """
    if k is None:
        return "dense"
    return "grouped" if expected_share(visible, k) <= MAX_GROUPED_SHARE else "dense"


def expected_share(visible: Sequence[Sequence[bool]], k: int) -> float:
    """The expected share of all (sample, expert) pairs, for independent and even gates."""
    seen = [sum(row) for row in visible]
    untouched = []
    for e in range(len(visible[0])):
        share = 1.0
        for g, row in enumerate(visible):
            if row[e]:
                share *= 1 - min(k / seen[g], 1.0)
        untouched.append(share)
    return 1 - sum(untouched) / len(untouched)


def resolve_execution(
    execution: Execution, gate: nn.Module, visible: Sequence[Sequence[bool]], *, local: bool
) -> Literal["dense", "grouped"]:
    """Resolves `auto`, and refuses what cannot work; the gate's attribute `k` says how it picks."""
    if execution not in get_args(Execution):
        raise ValueError(f"execution: expected auto, dense or grouped, got {execution!r}")
    k: Any = getattr(gate, "k", None)
    k = k if isinstance(k, int) else None
    for g, row in enumerate(visible):
        if k is not None and k > sum(row):
            raise ValueError(
                f"gate: gate {g} picks k = {k} experts, but sees {sum(row)}; lower k, or show it "
                "more experts"
            )
    if not local and execution == "dense":
        raise ValueError(
            "execution: dense runs every expert here and cannot go with a dispatcher; use grouped"
        )
    if execution != "auto":
        return execution
    return choose_execution(visible, k) if local else "grouped"
