"""How many experts a pool has: of each kind, of the request, of the row."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmoe.config.experts import ExpertConfig

if TYPE_CHECKING:
    from mmoe.config.model import ModelConfig


def split_counts(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a `model` section whose `num_experts` is a number.

    Raises:
        ValueError: It is a mapping of something else than two numbers.

    Example:
        >>> split_counts({"num_experts": {"request": 2, "row": 4}})
        {'num_experts': 6, 'request_experts': 2}
    """
    counts = raw.get("num_experts")
    if not isinstance(counts, Mapping):
        return raw
    numbers = [counts.get(level) for level in ("request", "row")]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n >= 1]
    if len(whole) != 2 or len(counts) != 2:
        raise ValueError(
            "num_experts: expected a number, or how many of the request and how many of the row, "
            f"such as {{request: 4, row: 4}}, got {dict(counts)}"
        )
    if raw.get("request_experts", whole[0]) != whole[0]:
        raise ValueError(
            f"num_experts says {whole[0]} experts of the request, but request_experts is "
            f"{raw['request_experts']}; remove request_experts"
        )
    return {**raw, "num_experts": sum(whole), "request_experts": whole[0]}


def check_request_experts(model: "ModelConfig") -> None:
    """Refuses experts of the request where there can be none.

    Raises:
        ValueError: The model has not one pool, kinds of experts, or an input that is no feature's.
    """
    count = model.request_experts
    if not count:
        return
    if not model.has_one_pool:
        raise ValueError(
            f"request_experts is {count}, but kind {model.kind} has not one pool of experts; set "
            "kind: mmoe, omoe or esmm, or do without experts of the request"
        )
    if model.experts is not None:
        raise ValueError(
            f"request_experts is {count}, but experts lists kinds of experts; use expert and "
            "num_experts"
        )
    if count >= model.num_experts:
        raise ValueError(
            f"request_experts is {count} of num_experts {model.num_experts}, but candidates of a "
            "request differ by experts of the row alone; raise num_experts"
        )
    if model.interaction.replaces_inputs:
        raise ValueError(
            f"request_experts is {count}, but interaction {model.interaction.kind} takes the place "
            "of the inputs, and all it gives is the row's; remove one of them"
        )


def counts_of(experts: Any) -> list[int]:
    """Returns the counts of a raw list of kinds of experts.

    None where one cannot be told, for the errors of its own.

    Example:
        >>> counts_of([{"kind": "mlp", "count": 2}, {"kind": "fm", "count": 1}])
        [2, 1]
    """
    if not isinstance(experts, list | tuple):
        return []
    if not all(isinstance(expert, Mapping | ExpertConfig) for expert in experts):
        return []
    counts = [str(e.get("count") if isinstance(e, Mapping) else e.count) for e in experts]
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        return []
    return [int(count) for count in counts]


def check_kinds(model: "ModelConfig", experts: Sequence[ExpertConfig]) -> None:
    """Refuses kinds of experts that do not make one pool.

    Raises:
        ValueError: One has no count, the counts are not `num_experts`, or there is no one pool.
    """
    for i, expert in enumerate(experts):
        if expert.count is None:
            raise ValueError(f"experts.{i}.count is missing: how many such experts; add it")
    total = sum(expert.count or 0 for expert in experts)
    if not model.has_one_pool:
        raise ValueError(
            f"experts lists kinds of experts for one pool, which kind {model.kind} has not; "
            "remove it, or set kind: mmoe, omoe or esmm"
        )
    if model.num_experts != total:
        raise ValueError(
            f"num_experts is {model.num_experts}, but the counts under experts add up to "
            f"{total}; remove num_experts"
        )
    if model.expert != ExpertConfig():
        raise ValueError("expert and experts both say what experts are; remove one of them")
