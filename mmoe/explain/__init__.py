"""Explanations: each expert's worth to each task, and runs without some experts."""

from mmoe.explain.experts import check_explainable
from mmoe.explain.prune import prune_run
from mmoe.explain.run import (
    ExplainSettings,
    check_new_place,
    explain_ranker,
    explain_run,
    summary_lines,
    write_explanation,
)

__all__ = [
    "ExplainSettings",
    "check_explainable",
    "check_new_place",
    "explain_ranker",
    "explain_run",
    "prune_run",
    "summary_lines",
    "write_explanation",
]
