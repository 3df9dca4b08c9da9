"""Backtests: train on day d, test on day d + 1, walking forward to the last day."""

from typing import Any

from mmoe.moved import moved
from mmoe.train.backtest.steps import BacktestSettings, Step, backtest_steps
from mmoe.train.backtest.walk import backtest

__all__ = ["BacktestSettings", "Step", "backtest", "backtest_steps"]


def __getattr__(name: str) -> Any:
    return moved(name, __name__, {"plan_steps": "mmoe.train.backtest:backtest_steps"})
