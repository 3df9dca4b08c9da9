"""A run's folder: what it holds, who may write in it, and what a run says while it goes on."""

from mmoe.run.console import ConsoleReporter, SilentReporter
from mmoe.run.directory import RunDirectory

__all__ = ["ConsoleReporter", "RunDirectory", "SilentReporter"]
