"""Who pays for whom: what each expert is worth to each task, and a run without some of them."""

from mmoe.explain.prune import prune_run
from mmoe.explain.run import ExplainSettings, explain_ranker, explain_run

__all__ = ["ExplainSettings", "explain_ranker", "explain_run", "prune_run"]
