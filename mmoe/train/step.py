"""The program of an optimizer step: its phases, one step after the other or one step ahead."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field

from mmoe.config import RunConfig
from mmoe.datasets.rows.batch import Batch
from mmoe.errors import WHAT_TO_CHANGE, Diverged
from mmoe.mixture import update_biases
from mmoe.parallel import from_all
from mmoe.train.divergence import RecentSteps, likeliest_cause
from mmoe.train.forward_backward import NetworkPass, Step, StepLosses, backward, forward
from mmoe.train.optim import learning_rate_factor
from mmoe.train.over_ranks.step_collectives import ONE_PROCESS, StepRanks
from mmoe.train.profiling.parts import EMBEDDINGS, OPTIMIZER, part
from mmoe.train.state import TrainingState


@dataclass(frozen=True)
class StepProgram:
    """Trains by steps of the same phases (forward, backward, update), in turn or one ahead.

    Over ranks with tables of TorchRec's the pipeline is one step deep: the ids of the next step are
    on their way to the ranks that hold their rows while a step is trained on. Rows are looked up
    when the step's turn has come, so that the bits are those of a pipeline of depth 0.

    Attributes:
        state: What is trained.
        config: Of the run.
        total_steps: Of all epochs, for the schedule.
        ranks: The ranks that share the batches, each of which trains by as many steps of as many
            batches; default: there are no others.
        recent: The steps before, for the likeliest cause where one diverges.
        network_pass: Runs the network on what was looked up; None: the ranker itself does.
    """

    state: TrainingState
    config: RunConfig
    total_steps: int
    ranks: StepRanks = ONE_PROCESS
    recent: RecentSteps = field(default_factory=RecentSteps)
    network_pass: NetworkPass | None = None

    def run(self, batches: Iterator[Sequence[Batch]]) -> Generator[Step]:
        """Trains on the batches of each step; to be closed.

        Args:
            batches: This rank's rows of each step's batches, for the steps of an epoch that are
                left.

        Yields:
            Each step when it is done; `Step.found` has the losses over all ranks' rows.

        Raises:
            Diverged: The loss is not finite, on any rank; names the step and the task.
        """
        steps = map(Step.of, batches)
        pipeline = self.state.ranker.tables.ids_ahead(steps, self)
        if pipeline is None:
            yield from map(self.train, steps)
            return
        with closing(pipeline):
            while (step := pipeline.step()) is not None:
                yield step

    def train(self, step: Step) -> Step:
        """Does all phases of one step."""
        self.forward(step)
        self.backward(step)
        self.update()
        return step

    def forward(self, step: Step) -> None:
        """Looks the step's ids up, once, and goes as far as the loss."""
        _set_learning_rates(self.state, self.config, self.total_steps)
        self.recent.begin(step)
        with self._naming_the_step(step), self.state.draws.drawing():
            forward(self.state.ranker, step, self.config, self.ranks, self.network_pass)

    def backward(self, step: Step) -> None:
        """Fills the gradients."""
        with self._naming_the_step(step):
            self.recent.end(backward(step, self.config, self.ranks))

    def update(self) -> None:
        """Moves the weights by the gradients, and clears these."""
        state, ranker, training = self.state, self.state.ranker, self.config.training
        with part(OPTIMIZER):
            if training.gradient_clip is not None:
                self.ranks.clip(ranker.network, training.gradient_clip)
            state.optimizer.step()
            state.optimizer.zero_grad()
            update_biases(ranker.network)
            ranker.tables.step()
            if state.average is not None:
                state.average.update_parameters(ranker.network)

    def sending(self) -> AbstractContextManager[object]:
        """Encloses the time while ids are on their way, for a profile."""
        return part(EMBEDDINGS)

    @contextmanager
    def _naming_the_step(self, step: Step) -> Generator[None]:
        """Says which step diverged, the likeliest cause, and what to do."""
        try:
            yield
        except Diverged as error:
            number = self.state.position.step + 1
            why = self._why(step, everywhere=error.on_all_ranks)
            raise Diverged(f"training step {number}: {error}; {why}") from error

    def _why(self, step: Step, *, everywhere: bool) -> str:
        """The likeliest cause and its mend; of all ranks' findings, where all are here."""
        ranker, alone = self.state.ranker, self.ranks.alone
        found = likeliest_cause(ranker, step, self.config, self.recent, alone=alone)
        findings = [found] if alone or not everywhere else from_all(found)
        cause = min((one for one in findings if one is not None), default=None)
        return WHAT_TO_CHANGE if cause is None else f"likeliest cause: {cause.what}; {cause.mend}"


def train_step(
    state: TrainingState,
    batches: Sequence[Batch],
    config: RunConfig,
    total_steps: int,
    ranks: StepRanks = ONE_PROCESS,
) -> StepLosses:
    """Trains on one step of `batches`; see `StepProgram` for the arguments.

    Returns:
        The losses over all ranks' rows.

    Raises:
        Diverged: The loss is not finite, on any rank; names the step and the task.
    """
    step = StepProgram(state, config, total_steps, ranks).train(Step.of(batches))
    assert step.found is not None
    return step.found


def _set_learning_rates(state: TrainingState, config: RunConfig, total_steps: int) -> None:
    """Sets the rates that the schedule has for the next step."""
    optimizer = config.training.optimizer
    if optimizer.schedule == "constant" and not optimizer.warmup_steps:
        return  # set once, when the optimizers were built
    factor = learning_rate_factor(optimizer, state.position.step, total_steps)
    for group in state.optimizer.param_groups:
        group["lr"] = optimizer.learning_rate * factor
    state.ranker.tables.scale_learning_rates(factor)
