"""A reporter that keeps what it is told."""

from mmoe.run.console import SilentReporter


class Told(SilentReporter):
    """Keeps what is said."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)
