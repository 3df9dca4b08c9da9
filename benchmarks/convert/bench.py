"""What every race gets, and how much is trained."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TypeVar

import torch

from benchmarks.racing.clock import Clock

FEWEST_SEEDS = 3
# Of every mixture that is trained: without the loss some experts get few rows
GATE = {"kind": "top_k", "balance_loss": 0.01}
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
Job = TypeVar("Job")
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The grammar, the network and its training.

    Attributes:
        words: Of the grammar.
        states: Of the grammar.
        of_state: Words that a state may write.
        width: D of the Transformer.
        layers: Of the Transformer.
        hidden: Units of a dense feed-forward layer.
        context: Characters of a window.
        batch: Windows of a step.
        steps: Of the dense network.
        evaluations: In as many steps.
        windows: That are evaluated.
        num_experts: Of each converted layer.
        k: Experts of a character, each `hidden / k` wide.
    """

    words: int = 1024
    states: int = 256
    of_state: int = 16
    width: int = 64
    layers: int = 2
    hidden: int = 256
    context: int = 64
    batch: int = 16
    steps: int = 1500
    evaluations: int = 25
    windows: int = 256
    num_experts: int = 16
    k: int = 2

    @property
    def every(self) -> int:
        """Steps between two evaluations."""
        return self.steps // self.evaluations


@dataclass(frozen=True, kw_only=True)
class PictureSettings:
    """Images, the network and its training.

    Attributes:
        pictures: To train on.
        tests: Pictures whose class is told at the end.
        width: Channels of the first stage.
        batch: Pictures of a step.
        epochs: Over the pictures.
        num_experts: Of each converted layer.
        k: Experts of a place.
    """

    pictures: int = 16384
    tests: int = 2048
    width: int = 48
    batch: int = 64
    epochs: int = 5
    num_experts: int = 8
    k: int = 2


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The clock, and what is trained.

    Attributes:
        clock: For times, and told of progress.
        seeds: Of trainings that are compared.
        text: Of `steps_to_dense_loss`.
        pictures: Of `swin_accuracy`.
        workers: Processes that train at a time, of one thread each; 1: this one.
    """

    clock: Clock
    seeds: int = 3
    text: TextSettings = field(default_factory=TextSettings)
    pictures: PictureSettings = field(default_factory=PictureSettings)
    workers: int = 1

    def each(self, train: Callable[[Job], Found], jobs: Sequence[Job]) -> list[Found]:
        """Trains several networks, as many at a time as there are workers.

        Networks as small as these gain little from a second thread. What comes out is the same.

        Args:
            train: A function of a module, or part of one, since processes are told its name.
            jobs: What it is called with.
        """
        if self.workers == 1:
            return list(self._told(map(train, jobs), len(jobs)))
        with ProcessPoolExecutor(
            self.workers, get_context("spawn"), torch.set_num_threads, (1,)
        ) as pool:
            return list(self._told(pool.map(train, jobs), len(jobs)))

    def _told(self, trained: Iterable[Found], count: int) -> Iterator[Found]:
        for number, found in enumerate(trained, start=1):
            self.clock.say(f"  {number}/{count} trained")
            yield found
