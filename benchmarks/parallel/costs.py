"""What ranks cost: parts of a step beside those of one process, and what was waited for."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from mmoe.train.profiling import StepTimes

# Operators that multiply matrices; what else experts take is planning, packing, mixing, waiting
PRODUCTS = re.compile(r"_mm_|mm$|linear")


def account(
    one: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], logs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Milliseconds a step.

    Args:
        one: `StepTimes` of one process.
        ranks: Of every rank.
        logs: What `CollectiveSteps` answered on every rank, of the same steps.
    """
    times = [StepTimes.of(found) for found in (one, *ranks)]
    rows = [
        {"part": part.part, "one": part.both, "ranks": [t.parts[number].both for t in times[1:]]}
        for number, part in enumerate(times[0].parts)
    ]
    return {
        "parts": rows,
        "products": [_products(found) for found in (one, *ranks)],
        "collectives": collective_costs(logs),
        "step_ms": [log["step_ms"] for log in logs],
        "operators": list(ranks[0]["operators"]),
    }


def collective_costs(logs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a rank stands still for, by owner: means over ranks and steps.

    `waiting` is the time until the last rank was there as well; `on the wire` what it took from
    then on; what went on behind other work is neither.

    Args:
        logs: Of every rank, of the same steps.
    """
    latest: dict[str, float] = defaultdict(float)
    for log in logs:
        for found in log["found"]:
            latest[found["key"]] = max(latest[found["key"]], found["issued"])
    shares = 1 / sum(log["steps"] for log in logs)
    total: dict[str, dict[str, Any]] = {}
    for log in logs:
        for found in log["found"]:
            stood = found["ended"] - found["stood"]
            waited = min(max(latest[found["key"]] - found["stood"], 0.0), stood)
            row = total.setdefault(
                found["owner"],
                {"owner": found["owner"], "calls": 0.0, "mb": 0.0, "waiting": 0.0, "wire": 0.0},
            )
            row["calls"] += shares
            row["mb"] += found["bytes"] * shares / 1e6
            row["waiting"] += waited * 1e3 * shares
            row["wire"] += (stood - waited) * 1e3 * shares
    return sorted(total.values(), key=lambda row: -row["waiting"] - row["wire"])


def _products(times: Mapping[str, Any]) -> float:
    return sum(op["ms"] for op in times["operators"] if PRODUCTS.search(op["name"]))
