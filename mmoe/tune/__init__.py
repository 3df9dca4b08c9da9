"""A search for better settings of a config, judged on its validation split alone."""

from mmoe.tune.search import TuneSettings, tune_config

__all__ = ["TuneSettings", "tune_config"]
