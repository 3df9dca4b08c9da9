"""Kinds of somebody's own, one of each noun; what an installed package would hold."""

from toy_ranking import feature, metric, network, task

__all__ = ["feature", "metric", "network", "task"]
