"""What tests of interrupted and repeated runs share."""

from pathlib import Path

import pytest
import torch

from mmoe.score.checkpoint import CheckpointFolder
from mmoe.score.console import SilentReporter


@pytest.fixture
def weights():
    """The weights of a run's last checkpoint."""

    def read(folder: Path) -> dict[str, torch.Tensor]:
        return CheckpointFolder(folder / "checkpoint").model("latest")

    return read


@pytest.fixture
def assert_same(weights):
    """Two runs ended with the same bits."""

    def check(one: Path, two: Path) -> None:
        mine, theirs = weights(one), weights(two)
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name

    return check


class _Dies(SilentReporter):
    """Raises after so many training steps, as a killed process stops there."""

    def __init__(self, after: int) -> None:
        self.left = after

    def track(self, what, total, unit, *, done=0):
        outer = self

        class Context:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

            def advance(self, amount, note=""):
                outer.left -= what.startswith("epoch")
                if outer.left < 0:
                    raise KeyboardInterrupt

        return Context()


@pytest.fixture
def dies_after():
    """A reporter that ends a run after so many training steps."""
    return _Dies
