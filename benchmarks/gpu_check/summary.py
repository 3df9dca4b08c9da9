"""What a record says, in at most 100 lines."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu_check.record import FAILED, LEFT_OUT, MEASURED, NO_TIME, PASSED, STATUSES

MOST_LINES = 100
WIDTH = 160
FAILURES, REASONS, TIMES = 25, 15, 45
OF_KIND = 3
Lines = Mapping[str, Mapping[str, Any]]


def summary(lines: Lines, stages: Sequence[str]) -> list[str]:
    """A line for each stage, what failed, why things were left out, times, and the verdict.

    Args:
        lines: The last line of each key.
        stages: Those that were asked for.
    """
    own = {
        key: line for key, line in lines.items() if _stage(key) in stages and "marks" not in line
    }
    found = [_counts(stage, own) for stage in stages]
    found += _section("failed", _reasons(own, (FAILED,)), FAILURES)
    found += _section("not reached, or left out", _grouped(own), REASONS)
    found += _section(
        "times: ours in ms, how many times as long the others take", _times(own), TIMES
    )
    found = [line[:WIDTH] for line in found]
    return [*found[: MOST_LINES - 1], verdict(own, stages)]


def verdict(lines: Lines, stages: Sequence[str]) -> str:
    """The last line."""
    counts = Counter(line["status"] for line in lines.values())
    words = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    state = "all well" if not problems(lines, stages) else "; ".join(problems(lines, stages))
    if counts[NO_TIME]:
        state += " (run the same command again: what is done stays)"
    return f"gpu-check: {words or 'nothing ran'}: {state}"


def problems(lines: Lines, stages: Sequence[str]) -> list[str]:
    """Why the check is no success; nothing that was left out counts as one."""
    found = []
    counts = Counter(line["status"] for line in lines.values())
    for status in (FAILED, NO_TIME):
        if counts[status]:
            found.append(f"{counts[status]} {status}")
    for stage in stages:
        own = [line["status"] for key, line in lines.items() if _stage(key) == stage]
        if not {PASSED, MEASURED} & set(own):
            found.append(f"nothing of {stage} ran")
    return found


def _stage(key: str) -> str:
    return key.partition("/")[0]


def _counts(stage: str, lines: Lines) -> str:
    own = [line for key, line in lines.items() if _stage(key) == stage]
    counts = Counter(line["status"] for line in own)
    words = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    return f"{stage:<9} {words or 'nothing ran'}"


def _section(title: str, lines: Sequence[str], most: int) -> list[str]:
    if not lines:
        return []
    more = [f"  and {len(lines) - most} more: see the record"] if len(lines) > most else []
    return [f"{title}:", *(f"  {line}" for line in lines[:most]), *more]


def _reasons(lines: Lines, statuses: Iterable[str]) -> list[str]:
    return [
        f"{key}: {' '.join(str(line.get('reason', '')).split())}"
        for key, line in lines.items()
        if line["status"] in statuses
    ]


def _grouped(lines: Lines) -> list[str]:
    """Reasons with how often each was given: a thousand tests may be left out for one."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for key, line in lines.items():
        if line["status"] in (LEFT_OUT, NO_TIME):
            reason = " ".join(str(line.get("reason", "")).split())
            found.setdefault((_stage(key), line["status"], reason), []).append(key)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        f"{len(keys)} of {stage}, {status}: {reason} ({keys[0]})"
        for (stage, status, reason), keys in ordered
    ]


def _times(lines: Lines) -> list[str]:
    """The first of each kind: the most telling sizes are measured first."""
    found, of_kind = [], Counter[tuple[str, ...]]()
    for key, line in lines.items():
        kind = tuple(key.split()[:3])
        of_kind[kind] += 1
        if line["status"] != MEASURED or of_kind[kind] > OF_KIND:
            continue
        share = line.get("share_of_product_rate")
        of_rate = f", {share:.0%} of the product rate" if share is not None else ""
        if "times_as_fast" in line:
            others = "  ".join(f"{who} {ratio}x" for who, ratio in line["times_as_fast"].items())
            found.append(f"{key}, hoped for {line['hoped_for']}x: {others}")
        elif "rows_per_second" in line:
            waits = line.get("share_waiting_for_host")
            host = f", {waits:.0%} waits for the host" if waits is not None else ""
            tables = f", tables {line['tables']}" if "tables" in line else ""
            found.append(f"{key}: {line['rows_per_second']:,} rows/s{of_rate}{host}{tables}")
        elif "mmoe" in line.get("milliseconds", {}):
            others = "  ".join(f"{who} {ratio}x" for who, ratio in line["times_as_long"].items())
            found.append(f"{key}: {line['milliseconds']['mmoe']:.4g} ms{of_rate}  {others}")
    return found
