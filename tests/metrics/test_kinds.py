"""Kinds of tasks: the registry, and what tells them apart."""

from typing import ClassVar

import numpy as np
import pytest

from mmoe.metrics import KINDS, first_of, kind_of_metrics, task_metrics
from mmoe.metrics.task_kinds import add_kind

LABELS, PREDICTIONS = np.array([0.0, 1.0, 1.0]), np.array([0.2, 0.9, 0.4])


def test_a_kind_is_added_once_and_does_not_turn_a_metric_round():
    with pytest.raises(ValueError, match="task kind 'binary': there is such a kind"):
        add_kind("binary", KINDS["binary"])

    class Upside(type(KINDS["binary"])):
        monitored: ClassVar = {"logloss": True}

    with pytest.raises(ValueError, match="logloss is better when it is lower in other kinds"):
        add_kind("upside", Upside())
    assert "upside" not in KINDS


def test_a_kind_gives_what_it_says():
    for name, kind in KINDS.items():
        values = task_metrics(name, LABELS, PREDICTIONS, intervals=True).values
        assert {*kind.monitored, *kind.calibration_keys, kind.loss_metric} - {None} <= set(values)
        assert kind.keys <= {*values, "gap"}
        assert kind_of_metrics(values).columns is kind.columns


def test_binary_tasks_speak_before_regressions():
    assert first_of(["regression", "entire_space", "binary"]) is KINDS["binary"]
    assert first_of(["regression"]) is KINDS["regression"]
    assert kind_of_metrics({}) is KINDS["binary"]
