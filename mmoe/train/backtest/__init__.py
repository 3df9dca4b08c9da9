"""Walking forward: train on day d, test on day d + 1, and so on to the last day."""

from mmoe.train.backtest.plan import BacktestSettings, Step, plan_steps
from mmoe.train.backtest.walk import backtest

__all__ = ["BacktestSettings", "Step", "backtest", "plan_steps"]
