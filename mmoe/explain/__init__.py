"""Who pays for whom: what each expert is worth to each task, and a run without some of them."""

from mmoe.explain.prune import prune_run
from mmoe.explain.run import explain_ranker, explain_run
from mmoe.explain.settings import ExplainSettings

__all__ = ["ExplainSettings", "explain_ranker", "explain_run", "prune_run"]
