"""An optimizer step and its phases: look up, forward, backward, update.

A `Step` goes through them: one batch, or several that count as one. All ids are looked up at once,
so tables see one gradient for a row, and an optimizer fused into their backward pass moves them
once. Every task's loss is divided by the observed weight of all batches, which follows from the
labels alone. What differs from one large batch is what a model computes across the rows of a batch:
balance losses, capacities and batch norms are those of each batch, the losses averaged by rows.

Over ranks each has its rows of every batch, or none: all take the same phases of as many batches,
and all get the losses of all rows. Balance losses and batch norms are then those of all ranks' rows
of a batch, capacities those of each rank's."""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import zip_longest
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm
from torch.profiler import record_function

from mmoe.config import RunConfig
from mmoe.datasets import Batch
from mmoe.embeddings import EmbeddingBackend, Lookups
from mmoe.errors import WHAT_TO_CHANGE, Diverged, NotFinite
from mmoe.mixture import SigmoidGate
from mmoe.mixture.gates.sigmoid import biased_gates, gate_loads
from mmoe.models import NetworkOutput, Ranker
from mmoe.parallel import (
    GradientSum,
    from_all,
    is_spread,
    parameters_by_replicas,
    replicated_parameters,
    world_size,
)
from mmoe.parallel.launch.process_group import COLLECTIVE_SECONDS
from mmoe.tasks.masked_loss import TaskLosses
from mmoe.train.divergence import RecentSteps, likeliest_cause
from mmoe.train.optim import learning_rate_factor
from mmoe.train.profiling import BACKWARD, EMBEDDINGS, LOSS, OPTIMIZER, PREFIX
from mmoe.train.state import TrainingState


class StepRanks:
    """Ranks that share every batch of a training run, and what they tell each other.

    The loss is `L = Σ_r L_r`, the sum of what each rank calls `backward` on. So gradients of what
    every rank has are added up; those of spread experts are complete where they are held. Sums
    travel in a process group of their own: nothing else that ranks exchange at that time (rows of
    experts, of tables) waits for them, or could change places with them.

    Attributes:
        alone: Whether there are no other ranks.

    Example:
        >>> from mmoe.train.step import ONE_PROCESS
        >>> ONE_PROCESS.add_up(torch.tensor([2.0]))
        tensor([2.])
    """

    def __init__(self) -> None:
        self.alone = True
        self.group: dist.ProcessGroup | None = None
        self.gradients: list[GradientSum] = []
        self.empty: list[nn.Parameter] = []
        self.network: nn.Module | None = None

    @classmethod
    def of(cls, network: nn.Module, timeout_seconds: int = COLLECTIVE_SECONDS) -> "StepRanks":
        """Makes it for all ranks of the process group, or for this process alone; collective.

        Args:
            network: What is trained, built by each rank as its part of one network.
            timeout_seconds: After which a rank that waits for another gives up.
        """
        ranks = cls()
        if world_size() > 1:
            patience = timedelta(seconds=timeout_seconds)
            ranks.group = cast(dist.ProcessGroup, dist.new_group(timeout=patience))
            ranks.alone, ranks.network = False, network
            ranks.find_gradients()
        return ranks

    def find_gradients(self) -> None:
        """Finds the gradients that are added up, of a network whose modules may be others now."""
        if self.network is None:
            return
        for gradients in self.gradients:
            gradients.close()
        summed = [(self.group, replicated_parameters(self.network))]
        summed += [(g, own) for g, own in parameters_by_replicas(self.network) if g is not None]
        self.gradients = [GradientSum(weights, group) for group, weights in summed]
        self.empty = [w for w in self.network.parameters() if w.requires_grad and not w.numel()]

    def close(self) -> None:
        """Ends the group of gradient sums; no step follows."""
        if self.group is not None:
            dist.destroy_process_group(self.group)

    def add_up(self, amounts_N: Tensor) -> Tensor:
        """Adds amounts up over ranks, and waits for the sums.

        Args:
            amounts_N: As many on every rank; float64 where the sums must be exact.
        """
        if not self.alone:
            amounts_N = amounts_N.clone()
            dist.all_reduce(amounts_N, group=self.group)
        return amounts_N

    def begin_outcome(self, amounts_N: Tensor) -> Callable[[], Tensor]:
        """Begins to add up what the forward passes found.

        The picks that gates count for their biases (`SigmoidGate`) travel in the same message.

        Args:
            amounts_N: float64, as many on every rank.

        Returns:
            Waits for the sums, of which each rank has the same bits, and returns them.
        """
        if self.network is None:
            return lambda: amounts_N
        loads = gate_loads(self.network)
        flat = torch.cat([amounts_N, *(load_GE.flatten().double() for load_GE in loads)])
        work = dist.all_reduce(flat, group=self.group, async_op=True)

        def finish() -> Tensor:
            assert work is not None
            work.wait()
            sums_N, *counts = flat.split([len(amounts_N), *(load.numel() for load in loads)])
            for load_GE, count in zip(loads, counts, strict=True):
                load_GE.copy_(count.view_as(load_GE))
            return sums_N

        return finish

    def adding_gradients(self) -> AbstractContextManager[object]:
        """Encloses a step's last backward pass: gradients leave as they come."""
        stack = ExitStack()
        for gradients in self.gradients:
            stack.enter_context(gradients.in_flight())
        return stack

    def wait(self) -> None:
        """Waits until the gradients of the step are those of all ranks."""
        for gradients in self.gradients:
            gradients.wait()
        # Of experts that are all elsewhere: an optimizer counts the same steps of them as there
        for weight in self.empty:
            weight.grad = torch.zeros_like(weight)

    def clip(self, network: nn.Module, max_norm: float) -> None:
        """Shortens the dense gradients to an L2 norm of at most `max_norm`, over all ranks."""
        if self.alone or not is_spread(network):
            clip_grad_norm_(network.parameters(), max_norm)
            return
        others = _norm(replicated_parameters(network))
        mine = torch.zeros_like(others, dtype=torch.float64)
        for group, weights in parameters_by_replicas(network):
            # The sum over all ranks has each of them as often as there are replicas
            replicas = 1 if group is None else dist.get_world_size(group)
            mine += _norm(weights).double().square() / replicas
        squares = self.add_up(mine.view(1))[0] + others.double().square()
        clip_grads_with_norm_(network.parameters(), max_norm, squares.sqrt().to(others.dtype))


def _norm(weights: Sequence[nn.Parameter]) -> Tensor:
    return get_total_norm([weight.grad for weight in weights if weight.grad is not None])


ONE_PROCESS = StepRanks()


# Rows and what their ids were looked up to be; a `Ranker`, or what runs its network otherwise
NetworkPass = Callable[[Batch, Lookups | None], NetworkOutput]


@dataclass(frozen=True)
class StepLosses:
    """Losses and dropped picks that the forward passes of a step found.

    Attributes:
        losses: Mean loss of each task over its observed rows; ESMM's second: over all rows whose
            outcome is known.
        rows: How many rows (weights) that was.
        dropped: Picks that the capacity dropped; None: there is no capacity.
    """

    losses: list[float]
    rows: list[float]
    dropped: int | None = None


@dataclass
class Step:
    """One optimizer step: its batches, and what each phase leaves for the next.

    Attributes:
        batches: This rank's rows of the step's batches, one at least.
        ids: Ids, lengths and weights of ids of one batch made of all, feature-major, as the
            embeddings take them.
        lookups: Looked up for all batches; None where no feature has ids.
        leaves: The same by batch, as the network read it; leaves of the graph.
        weights_T: What each task's loss is divided by.
        loss: Of the last batch, whose backward pass is still to come.
        losses_T: Sums over the batches, as `total` and `dropped`; nothing is read on the host.
        total: Tasks' and auxiliary losses together.
        dropped: Picks that the capacity dropped.
        found: What `backward` read at last.

    Example:
        >>> import torch
        >>> from mmoe.datasets.rows.batch import Batch
        >>> from mmoe.train.step import Step
        >>> one, two = (
        ...     Batch(
        ...         dense_BF=torch.zeros(1, 0), values=torch.tensor(ids), num_rows=1,
        ...         lengths_CB=torch.ones(2, dtype=torch.int32),
        ...         labels_BT=None, observed_BT=None, weights_BT=None)
        ...     for ids in ([1, 10], [2, 20]))
        >>> Step.of([one, two]).ids[0]
        tensor([ 1,  2, 10, 20])
    """

    batches: Sequence[Batch]
    ids: tuple[Tensor, Tensor, Tensor | None]
    lookups: Lookups | None = None
    leaves: Sequence[Lookups] = ()
    weights_T: Tensor | None = None
    loss: Tensor | None = None
    losses_T: Tensor | None = None
    total: Tensor | None = None
    dropped: Tensor | None = None
    found: StepLosses | None = None

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Step":
        """Makes a step before its first phase."""
        return cls(batches, _all_ids(batches))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory until `stream` has done what it was told so far."""
        for batch in self.batches:
            batch.record_stream(stream)
        for tensor in self.ids:
            if tensor is not None:
                tensor.record_stream(stream)

    def add(self, loss: Tensor, losses_T: Tensor, dropped: Tensor | None) -> None:
        """Adds the losses of one forward pass."""
        self.loss = loss
        self.losses_T = losses_T if self.losses_T is None else self.losses_T + losses_T
        self.total = loss.detach() if self.total is None else self.total + loss.detach()
        if dropped is not None:
            self.dropped = dropped if self.dropped is None else self.dropped + dropped

    def amounts(self) -> Tensor:
        """Joins the losses of the T tasks, the whole loss and dropped picks, in float64."""
        assert self.losses_T is not None and self.total is not None
        dropped = self.total.new_zeros(()) if self.dropped is None else self.dropped
        return torch.cat(
            [self.losses_T.double(), torch.stack([self.total.double(), dropped.double()])]
        )


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
        self._set_learning_rates()
        self.recent.batches.append(step.batches)
        with self._naming_the_step(step), self.state.draws.drawing():
            forward(
                self.state.ranker,
                step,
                self._losses,
                self.ranks,
                narrow=self.config.training.precision == "bf16",
                network_pass=self.network_pass,
            )

    def backward(self, step: Step) -> None:
        """Fills the gradients."""
        with self._naming_the_step(step):
            self.recent.losses.append(backward(step, self._losses, self.ranks).losses)

    def update(self) -> None:
        """Moves the weights by the gradients, and clears these."""
        state, ranker, training = self.state, self.state.ranker, self.config.training
        with record_function(PREFIX + OPTIMIZER):
            if training.gradient_clip is not None:
                self.ranks.clip(ranker.network, training.gradient_clip)
            state.optimizer.step()
            state.optimizer.zero_grad()
            for gate in self._biased_gates:
                gate.update_bias()
            self._tables.step()
            if state.average is not None:
                state.average.update_parameters(ranker.network)

    def sending(self) -> AbstractContextManager[object]:
        """Encloses the time while ids are on their way, for a profile."""
        return record_function(PREFIX + EMBEDDINGS)

    def _set_learning_rates(self) -> None:
        """Sets the rates that the schedule has for the next step."""
        state, optimizer = self.state, self.config.training.optimizer
        if optimizer.schedule == "constant" and not optimizer.warmup_steps:
            return  # set once, when the optimizers were built
        factor = learning_rate_factor(optimizer, state.position.step, self.total_steps)
        for group in state.optimizer.param_groups:
            group["lr"] = optimizer.learning_rate * factor
        self._tables.scale_learning_rates(factor)

    @cached_property
    def _tables(self) -> EmbeddingBackend:
        return self.state.ranker.tables

    @cached_property
    def _losses(self) -> TaskLosses:
        return TaskLosses(self.config.trained_tasks)

    @cached_property
    def _biased_gates(self) -> list[SigmoidGate]:
        """Gates whose biases follow their loads."""
        return biased_gates(self.state.ranker.network)

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
        read = [] if step.lookups is None else step.lookups.tensors
        batches = zip_longest(step.batches, step.leaves)
        found = likeliest_cause(ranker, list(batches), read, self.config, self.recent, alone=alone)
        findings = [found] if alone or not everywhere else from_all(found)
        cause = min((one for one in findings if one is not None), default=None)
        return WHAT_TO_CHANGE if cause is None else f"likeliest cause: {cause.what}; {cause.mend}"


def forward(
    ranker: Ranker,
    step: Step,
    losses: TaskLosses,
    ranks: StepRanks = ONE_PROCESS,
    *,
    narrow: bool = False,
    network_pass: NetworkPass | None = None,
) -> None:
    """Looks the step's ids up and goes as far as the loss of its last batch.

    Batches before it have their backward pass here too: the network's activations are those of one
    batch, however many a step has.

    Args:
        ranker: The model, in training mode.
        step: Before its first phase.
        losses: Of the tasks as they are trained.
        ranks: That share the step's batches.
        narrow: Whether the network runs in bfloat16.
        network_pass: Runs the network on what was looked up; None: the ranker itself does.

    Raises:
        Diverged: A number that the network reads, or (on the CPU) a gate's logit, is not finite; on
            any rank: all of them raise it.
    """
    batches = step.batches
    step.lookups = ranker.look_up_ids(*step.ids)
    leaves: list[Lookups | None] = [None] * len(batches)
    heights = [batch.dense_BF.shape[0] for batch in batches]
    if step.lookups is not None:
        # Leaves: the tables' backward pass runs once, when all gradients are there
        step.leaves = step.lookups.leaves(heights)
        leaves = list(step.leaves)
    step.weights_T, shares_N = _of_all_ranks(ranker, step, losses, ranks)
    for batch, lookups, share in zip(batches, leaves, shares_N, strict=True):
        if step.loss is not None:
            with record_function(PREFIX + BACKWARD):
                step.loss.backward()
        output = _forward(network_pass or ranker, batch, lookups, narrow=narrow)
        with record_function(PREFIX + LOSS):
            loss, losses_T = _loss(output, batch, losses, step.weights_T, share)
            step.add(loss, losses_T, output.dropped)


def backward(step: Step, losses: TaskLosses, ranks: StepRanks = ONE_PROCESS) -> StepLosses:
    """Fills the gradients: the backward passes of the last batch and of the tables.

    Raises:
        Diverged: A loss is no finite number; on any rank: all of them raise it. Tables are as they
            were.
    """
    assert step.loss is not None and step.weights_T is not None, "forward comes before"
    with record_function(PREFIX + BACKWARD):
        outcome = ranks.begin_outcome(step.amounts())
        with ranks.adding_gradients():
            step.loss.backward()
    with record_function(PREFIX + BACKWARD):
        # One look at all that the host wants to know: on a GPU each look is a wait
        values = torch.cat([outcome(), step.weights_T.double()]).tolist()
        tasks = len(step.weights_T)
        amounts, weights = values[:-tasks], values[-tasks:]
        try:
            _check_losses(amounts[tasks], amounts[:tasks], [task.name for task in losses.tasks])
        except Diverged as error:
            ranks.wait()  # all ranks see it, and leave nothing under way
            error.on_all_ranks = True
            raise
        if step.lookups is not None:
            _backward_of_tables(step.lookups, step.leaves)
        ranks.wait()
    step.lookups, step.leaves, step.loss = None, (), None  # nothing of the graph outlives its step
    dropped = None if step.dropped is None else int(amounts[-1])
    step.found = StepLosses(amounts[:tasks], weights, dropped)
    return step.found


def _of_all_ranks(
    ranker: Ranker, step: Step, losses: TaskLosses, ranks: StepRanks
) -> tuple[Tensor, list[float]]:
    """Returns each task's divisor of the loss, `weights_T`, and each batch's share of all rows.

    A rank of several that reads what is not finite says so here: its gates would refuse it in the
    middle of the forward pass, and leave the others waiting.
    """
    batches = step.batches
    observed = [
        losses.observed_weights(b.labels_BT, b.observed_BT, b.weights_BT)
        for b in batches
        if b.labels_BT is not None and b.observed_BT is not None and b.weights_BT is not None
    ]
    whole_T = torch.stack(observed).sum(0)
    rows_N = [float(batch.num_rows) for batch in batches]
    if not ranks.alone:
        read = [x for of_batch in step.leaves for x in of_batch.tensors]
        read += [x for batch in batches for x in (batch.dense_BF, batch.request_dense_QF)]
        if not all(map(len, batches)):
            read += ranker.network.parameters()  # a rank without rows would not notice
        wrong = [_not_finite(x.detach()) for x in read if x is not None and x.numel()]
        rows = torch.tensor(rows_N, dtype=torch.float64, device=whole_T.device)
        wrong_1 = torch.stack([rows.new_zeros(()).bool(), *wrong]).sum().view(1).to(rows)
        sums = ranks.add_up(torch.cat([whole_T.double(), rows, wrong_1]))
        whole_T = sums[: len(whole_T)].to(whole_T.dtype)
        *rows_N, wrong_numbers = sums[len(whole_T) :].tolist()
        if wrong_numbers:
            error = Diverged(
                "the loss cannot be computed: an embedding, a number or a weight is NaN or infinite"
            )
            error.on_all_ranks = True
            raise error
    return whole_T, [rows / max(sum(rows_N), 1) for rows in rows_N]


def _forward(
    network_pass: NetworkPass, batch: Batch, lookups: Lookups | None, *, narrow: bool
) -> NetworkOutput:
    try:
        device = batch.dense_BF.device.type
        with torch.autocast(device, torch.bfloat16, enabled=narrow):
            return network_pass(batch, lookups)
    except NotFinite as error:  # a gate refuses it before the loss could show it
        raise Diverged(f"the loss cannot be computed ({error})") from error


def _loss(
    output: NetworkOutput, batch: Batch, losses: TaskLosses, whole_T: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    """The part of a step's loss that this batch is, and that of each task."""
    assert batch.labels_BT is not None and batch.observed_BT is not None
    assert batch.weights_BT is not None, "training batches carry labels"
    total, losses_T = losses.total(
        output.logits_BT,
        batch.labels_BT,
        batch.observed_BT,
        batch.weights_BT,
        out_of_T=whole_T,
        imputed=output.imputed,
        groups_B=batch.groups_B,
    )
    for label_loss in output.label_losses:
        observed_BT, weights_BT = batch.observed_BT, batch.weights_BT
        total = total + label_loss(output.logits_BT, observed_BT, weights_BT, whole_T)
    for auxiliary in output.auxiliary_losses.values():
        total = total + auxiliary * share
    return total, losses_T


def _backward_of_tables(lookups: Lookups, leaves: Sequence[Lookups]) -> None:
    """Goes on where the batches' backward passes ended."""
    by_batch = zip(*(of_batch.tensors for of_batch in leaves), strict=True)
    read, gradients = [], []
    for whole, parts in zip(lookups.tensors, by_batch, strict=True):
        # Of no features nothing is looked up, and of a table without tensors nothing has a gradient
        if whole.requires_grad:
            mine = [torch.zeros_like(x) if x.grad is None else x.grad for x in parts]
            read.append(whole)
            gradients.append(mine[0] if len(mine) == 1 else torch.cat(mine))
    torch.autograd.backward(read, gradients)


def _all_ids(batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor | None]:
    # One without rows does not tell how many features there are
    batches = [batch for batch in batches if len(batch)] or batches[:1]
    if len(batches) == 1:
        return batches[0].values, batches[0].lengths_CB, batches[0].id_weights
    lengths = [batch.lengths_CB.view(-1, len(batch)) for batch in batches]
    counts = [lengths_CB.sum(dim=1).tolist() for lengths_CB in lengths]
    weights = [batch.id_weights for batch in batches if batch.id_weights is not None]
    return (
        _by_feature([batch.values for batch in batches], counts),
        torch.cat(lengths, dim=1).flatten(),
        _by_feature(weights, counts) if weights else None,
    )


def _by_feature(tensors: Sequence[Tensor], counts: Sequence[list[int]]) -> Tensor:
    """Joins feature-major values of several batches: all of the first feature, then the next."""
    by_batch = [values.split(counted) for values, counted in zip(tensors, counts, strict=True)]
    ordered = [ids for of_feature in zip(*by_batch, strict=True) for ids in of_feature]
    return torch.cat(ordered) if ordered else tensors[0]  # no feature has ids


def _not_finite(x: Tensor) -> Tensor:
    """Returns a bool scalar: is a number of `x` NaN or infinite?

    One pass, where `isfinite` takes three; nothing is read on the host.
    """
    return ~torch.stack(torch.aminmax(x)).isfinite().all()


def _check_losses(total: float, losses: Sequence[float], tasks: Sequence[str]) -> None:
    """Refuses a step whose loss is not finite; names the tasks."""
    if math.isfinite(total):
        return
    names = [task for task, loss in zip(tasks, losses, strict=True) if not math.isfinite(loss)]
    whose = f"of task {', '.join(names)}" if names else "(an auxiliary loss)"
    raise Diverged(f"the loss {whose} is {total}")
