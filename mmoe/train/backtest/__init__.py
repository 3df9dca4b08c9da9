"""Backtests: train on day d, test on day d + 1, walking forward to the last day."""

from mmoe.train.backtest.steps import BacktestSettings, Step, backtest_steps
from mmoe.train.backtest.walk import backtest

__all__ = ["BacktestSettings", "Step", "backtest", "backtest_steps"]
