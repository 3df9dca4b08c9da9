"""Explanations: each expert's worth to each task, and runs without some experts."""

from mmoe.explain.prune import prune_run
from mmoe.explain.run import ExplainSettings, explain_ranker, explain_run

__all__ = ["ExplainSettings", "explain_ranker", "explain_run", "prune_run"]
