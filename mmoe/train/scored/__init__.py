"""Scores of an earlier day, measured by labels that have come since."""

from mmoe.train.scored.evaluate import evaluate_scored

__all__ = ["evaluate_scored"]
