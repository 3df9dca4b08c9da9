"""Kinds of somebody's own, one of each noun; what an installed package would hold."""

from toy_ranking import feature, metric, task

__all__ = ["feature", "metric", "task"]
