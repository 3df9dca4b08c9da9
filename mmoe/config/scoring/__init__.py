"""`score`: what `mmoe score` does by itself, and what it expects of a night's rows."""

from mmoe.config.scoring.expectation import Expectation, expectation_of
from mmoe.config.scoring.settings import ScoreConfig

__all__ = ["Expectation", "ScoreConfig", "expectation_of"]
