"""Rows/s of scoring as a share of what the machine's products reach, and beside those of before."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.racing.races import NothingToMeasure, Race
from benchmarks.racing.results import Result, speedup
from benchmarks.racing.times import Spread
from benchmarks.score.before import COMMIT, earlier_mmoe
from benchmarks.score.bench import Answer, Bench, flops_per_second, times_of
from benchmarks.train.workloads import BATCH

PRECISIONS = ("bf16", "fp32")
SHARES = tuple(f"gemm_share_score_{precision}" for precision in PRECISIONS)


def ours(bench: Bench) -> list[Result]:
    """Both precisions, and both of the earlier mmoe where it can be had, in turn.

    What is compared is the scoring: from the first row that is read until the output is there. The
    start of a process and the loading of the model come before; `vs_before_whole` counts them.
    """
    source = bench.log(bench.rows).train
    calls = {f"mmoe {p}": partial(bench.score, p, source) for p in PRECISIONS}
    calls |= _before(bench, source)
    answers = bench.in_turns(calls, bench.repeats)
    shares = [_share(p, answers[f"mmoe {p}"], _parts(answers)) for p in PRECISIONS]
    return [*shares, *(_versus(answers) if "before bf16" in answers else ())]


def share(key: str, precision: str, answers: Sequence[Answer], note: str = "", **more) -> Result:
    """FLOP/s, still to be divided by the product rate."""
    seconds = [a["seconds"] / a["rows"] for a in answers]
    rate = f"{1 / statistics.median(seconds):,.0f} rows/s"
    return Result(
        key=key,
        spread=Spread.of(flops_per_second(answers)),
        ours_ms=statistics.median(seconds) * BATCH * 1e3,
        product_rate=precision,
        note=f"{rate} {note}".strip(),
        **more,
    )


def _share(precision: str, answers: Sequence[Answer], parts: Sequence[Mapping[str, Any]]) -> Result:
    return share(
        f"gemm_share_score_{precision}",
        precision,
        answers,
        details=[part for part in parts if str(part["who"]).endswith(precision)],
    )


def _before(bench: Bench, source: Path) -> dict[str, Callable[[], Answer]]:
    if "vs_before" not in bench.wanted:
        return {}
    try:
        tree = earlier_mmoe(bench.folder, bench.say)
    except NothingToMeasure as reason:  # the shares do not depend on it
        bench.skipped["vs_before"] = str(reason)
        return {}
    return {f"before {p}": partial(bench.score, p, source, tree=tree) for p in PRECISIONS}


def _versus(answers: Mapping[str, Sequence[Answer]]) -> list[Result]:
    scoring, whole = times_of(answers), times_of(answers, "whole")
    cases = {
        "vs_before": (scoring, "bf16"),
        "vs_before_fp32": (scoring, "fp32"),
        "vs_before_whole": (whole, "bf16"),
        "vs_before_whole_fp32": (whole, "fp32"),
    }
    return [
        speedup(key, times, f"before {p}", f"mmoe {p}", note=f"{COMMIT} over ours, {p}")
        for key, (times, p) in cases.items()
    ]


def _parts(answers: Mapping[str, Sequence[Answer]]) -> list[dict[str, Any]]:
    """What a process of each contestant did, in seconds (medians)."""
    return [
        {
            "who": who,
            "rows": of[0]["rows"],
            **{what: _median(of, what) for what in ("imports", "loading", "seconds", "whole")},
            "peak_gib": _median(of, "peak") / 2**30,
        }
        for who, of in answers.items()
    ]


def _median(answers: Sequence[Answer], what: str) -> float:
    return float(statistics.median(answer[what] for answer in answers))


SPEED_RACES = (Race((*SHARES, "vs_before"), ours),)
