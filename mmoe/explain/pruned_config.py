"""The config of a run without some of its experts."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from mmoe.config import RunConfig
from mmoe.config.model import ModelConfig
from mmoe.explain.places import ExpertPlace, levels_of, places_of
from mmoe.mixture import DSelectKGate
from mmoe.mixture.traits import GateTraits, traits_of
from mmoe.models.network import MixtureNetwork


def chosen_places(network: MixtureNetwork, numbers: Sequence[int]) -> list[ExpertPlace]:
    """Returns the experts with these numbers, which may go.

    Raises:
        ValueError: There is no such expert, a task depends on one alone, or a gate cannot do
            without.
    """
    places = places_of(network)
    if not numbers:
        raise ValueError("--experts: expected numbers such as 3,5, got none")
    for number in numbers:
        if not 1 <= number <= len(places):
            raise ValueError(
                f"--experts: there is no expert {number}; the run has 1 to {len(places)}, as "
                "`mmoe explain` numbers them"
            )
    gone = [places[number - 1] for number in sorted(set(numbers))]
    for index, level in enumerate(levels_of(network)):
        mine = {place.expert for place in gone if place.level == index}
        if mine and isinstance(level.mixture.gate, DSelectKGate):
            raise ValueError(
                "--experts: the codes of model.gate.kind dselect_k spell the experts' numbers, so "
                "none can go; train with another gate to prune"
            )
        _check_gates(level.gate_names, level.mixture.visibility_GE.tolist(), mine, level.mixture)
    return gone


def _check_gates(
    names: Sequence[str], seen_GE: Sequence[Sequence[bool]], gone: set[int], mixture: Any
) -> None:
    """Refuses to leave a gate no expert, or fewer than it picks."""
    least = traits_of(mixture.gate, GateTraits).k or 1
    for name, row in zip(names, seen_GE, strict=True):
        left = [e for e, sees in enumerate(row) if sees and e not in gone]
        who = "all tasks" if name == "all tasks" else f"{name!r}"
        if gone and not left:
            raise ValueError(
                f"--experts: the gate of {who} would see no expert, and what it is for depends on "
                "one of these alone; keep one that it sees (`mmoe explain` says which is worth "
                "most)"
            )
        if gone and len(left) < least:
            raise ValueError(
                f"--experts: the gate of {who} picks {least} experts and would see {len(left)}; "
                "prune fewer, or train with a smaller model.gate.k first"
            )


def pruned_config(
    config: RunConfig, network: MixtureNetwork, gone: Sequence[ExpertPlace]
) -> RunConfig:
    """Returns the config of the same model without some experts.

    One pool has fewer experts then (`num_experts`, or the counts under `experts`), numbered anew;
    of own and shared experts those that are gone are named under `model.pruned`.

    Args:
        config: Of the run.
        network: Of the same.
        gone: From `chosen_places`.

    Raises:
        ValueError: Such a model cannot be.
    """
    model = config.model
    if any(stage.experts for stage in model.stages):
        raise ValueError(
            "--experts: gates and experts of this run came one after another (model.stages), and "
            "frozen ones score as before; prune the run that it began with, and train on that"
        )
    raw = model.model_dump()
    if not model.has_one_pool:
        raw["pruned"] += [{"level": one.level + 1, "name": one.name} for one in gone]
    elif model.experts is None:
        raw["num_experts"] = len(places_of(network)) - len(gone)
        raw["request_experts"] -= sum(one.expert < model.experts_of_requests for one in gone)
        if model.experts_of_requests and not raw["request_experts"]:
            raise ValueError(
                "--experts: no expert of the request would be left; keep one, or train anew with "
                "num_experts a number alone"
            )
    else:
        places, left = {one.expert for one in gone}, []
        first = 0
        for kind in raw["experts"]:
            mine = range(first, first + kind["count"])
            first = mine.stop
            count = sum(e not in places for e in mine)
            left += [{**kind, "count": count}] if count else []
        raw["experts"] = left
        raw["num_experts"] = sum(kind["count"] for kind in left)
    try:
        pruned: ModelConfig = type(model).model_validate(raw)
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ValueError(f"--experts: {reason}") from None
    numbers = {one.number for one in gone}
    shadowed = [
        number - sum(n < number for n in numbers)
        for number in config.parallel.shadowed
        if number not in numbers
    ]
    parallel = config.parallel.model_copy(update={"shadowed": shadowed})
    return config.model_copy(update={"model": pruned, "parallel": parallel})
