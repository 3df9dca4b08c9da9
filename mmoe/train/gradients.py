"""The gradients of one optimizer step, from one batch or from several that count as one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmoe.config import RunConfig
from mmoe.datasets.rows.batch import Batch
from mmoe.errors import Diverged
from mmoe.models.network import NetworkOutput
from mmoe.models.ranker import Ranker
from mmoe.tasks.losses import multi_task_loss, observed_weights
from mmoe.train.profiling.parts import BACKWARD, LOSS, part
from mmoe.train.ranks import ONE_PROCESS, StepRanks
from mmoe.train.step_batches import StepBatches


@dataclass(frozen=True)
class StepLosses:
    """What the forward passes of a step found.

    Attributes:
        losses: Mean loss of each task over its observed rows; ESMM's second: over all rows whose
            outcome is known.
        rows: How many rows (weights) that was.
        dropped: Picks that the capacity dropped; None: there is no capacity.
    """

    losses: list[float]
    rows: list[float]
    dropped: int | None = None


def forward_backward(
    ranker: Ranker,
    batches: Sequence[Batch],
    config: RunConfig,
    ranks: StepRanks = ONE_PROCESS,
) -> StepLosses:
    """Adds the gradients of `batches` together as if they were one batch, one forward at a time.

    All ids are looked up at once, so tables too see one gradient for a row, and an optimizer fused
    into their backward pass moves them once. Every task's loss is divided by the observed weight of
    all batches, which follows from the labels alone. What differs from one large batch is what a
    model computes across the rows of a batch: balance losses, capacities and batch norms are those
    of each batch, the losses averaged by rows.

    Over ranks each has its rows of every batch, or none: all call this with as many batches, and
    all get the losses of all rows. Balance losses and batch norms are then those of all ranks' rows
    of a batch, capacities those of each rank's.

    Raises:
        Diverged: A loss, or (on the CPU) a gate's logit, is no finite number; on any rank: all of
            them raise it. Tables are as they were.
    """
    return forward(ranker, StepBatches.of(batches), config, ranks).backward()


def forward(
    ranker: Ranker, step: StepBatches, config: RunConfig, ranks: StepRanks = ONE_PROCESS
) -> "HalfStep":
    """The first half of `forward_backward`, up to the loss of the last batch.

    Batches before it have their backward pass here too: the network's activations are those of one
    batch, however many a step has.

    Raises:
        Diverged: As there.
    """
    batches = step.batches
    x_ND = ranker.look_up(*step.ids)
    parts: list[Tensor | None] = [None] * len(batches)
    if x_ND is not None:
        # Leaves: the tables' backward pass runs once, when all gradients are there
        parts = [x.requires_grad_() for x in x_ND.detach().split([len(b) for b in batches])]
    read = [*parts, *(batch.dense_BF for batch in batches)]
    if not all(map(len, batches)):
        read += ranker.network.parameters()  # a rank without rows would not notice
    whole_T, shares_N = _of_all_ranks(batches, read, config, ranks)
    found, loss = _Found(), None
    for batch, x_BD, share in zip(batches, parts, shares_N, strict=True):
        if loss is not None:
            with part(BACKWARD):
                loss.backward()
        output = _forward(ranker, batch, x_BD, config)
        with part(LOSS):
            loss, per_task_T = _loss(output, batch, config, whole_T, share)
            found.add(loss, per_task_T, output.dropped)
    assert loss is not None, "a step has a batch"
    return HalfStep(loss, x_ND, [x for x in parts if x is not None], whole_T, found, config, ranks)


@dataclass(frozen=True)
class HalfStep:
    """What the second half of `forward_backward` needs of the first.

    Attributes:
        loss: Of the last batch.
        x_ND: What was looked up for all batches; None where no feature has ids.
        parts: The same by batch, as the network read it; leaves of the graph.
        whole_T: What each task's loss was divided by.
        found: Sums over the batches.
        config: Of the run.
        ranks: The ranks that share the batches.
    """

    loss: Tensor
    x_ND: Tensor | None
    parts: Sequence[Tensor]
    whole_T: Tensor
    found: "_Found"
    config: RunConfig
    ranks: StepRanks

    def backward(self) -> StepLosses:
        """The backward passes of the last batch and of the tables.

        Raises:
            Diverged: See `forward_backward`.
        """
        with part(BACKWARD):
            outcome = self.ranks.begin_outcome(self.found.amounts())
            with self.ranks.adding_gradients():
                self.loss.backward()
        with part(BACKWARD):
            # One look at all that the host wants to know: on a GPU each look is a wait
            values = torch.cat([outcome(), self.whole_T.double()]).tolist()
            tasks = len(self.whole_T)
            amounts, weights = values[:-tasks], values[-tasks:]
            try:
                _check_finite(amounts, self.config)
            except Diverged:
                self.ranks.wait()  # all ranks see it, and leave nothing under way
                raise
            if self.x_ND is not None:
                self.x_ND.backward(_joined([x_BD.grad for x_BD in self.parts]))
            self.ranks.wait()
        dropped = None if self.found.dropped is None else int(amounts[-1])
        return StepLosses(amounts[:tasks], weights, dropped)


@dataclass
class _Found:
    """What the forward passes of a step found on this rank; nothing is read on the host."""

    losses_T: Tensor | None = None
    total: Tensor | None = None
    dropped: Tensor | None = None

    def add(self, loss: Tensor, losses_T: Tensor, dropped: Tensor | None) -> None:
        """What one forward pass found."""
        self.losses_T = losses_T if self.losses_T is None else self.losses_T + losses_T
        self.total = loss.detach() if self.total is None else self.total + loss.detach()
        if dropped is not None:
            self.dropped = dropped if self.dropped is None else self.dropped + dropped

    def amounts(self) -> Tensor:
        """The losses of the T tasks, the whole loss, and the dropped picks, in float64."""
        assert self.losses_T is not None and self.total is not None
        dropped = self.total.new_zeros(()) if self.dropped is None else self.dropped
        return torch.cat(
            [self.losses_T.double(), torch.stack([self.total.double(), dropped.double()])]
        )


def _of_all_ranks(
    batches: Sequence[Batch],
    read: Sequence[Tensor | None],
    config: RunConfig,
    ranks: StepRanks,
) -> tuple[Tensor, list[float]]:
    """What each task's loss is divided by, `weights_T`, and each batch's share of all rows.

    A rank of several that reads what is not finite says so here: its gates would refuse it in the
    middle of the forward pass, and leave the others waiting.
    """
    whole_T = _observed_of_all(batches, config)
    rows_N = [float(batch.num_rows) for batch in batches]
    if not ranks.alone:
        wrong = [_not_finite(x.detach()) for x in read if x is not None and x.numel()]
        rows = torch.tensor(rows_N, dtype=torch.float64, device=whole_T.device)
        wrong_1 = torch.stack([rows.new_zeros(()).bool(), *wrong]).sum().view(1).to(rows)
        sums = ranks.add_up(torch.cat([whole_T.double(), rows, wrong_1]))
        whole_T = sums[: len(whole_T)].to(whole_T.dtype)
        *rows_N, not_finite = sums[len(whole_T) :].tolist()
        if not_finite:
            raise Diverged(
                "the loss cannot be computed: an embedding, a number or a weight is NaN or infinite"
            )
    return whole_T, [rows / max(sum(rows_N), 1) for rows in rows_N]


def _not_finite(x: Tensor) -> Tensor:
    """Whether a number is NaN or infinite: one pass, where `isfinite` takes three."""
    return ~torch.stack(torch.aminmax(x)).isfinite().all()


def _forward(ranker: Ranker, batch: Batch, x_BD: Tensor | None, config: RunConfig) -> NetworkOutput:
    try:
        narrow = config.training.precision == "bf16"
        with torch.autocast(ranker.device.type, torch.bfloat16, enabled=narrow):
            return ranker.mix(batch.dense_BF, x_BD)
    except ValueError as error:
        # A gate refuses NaN before the loss could show it.
        if "NaN" not in str(error):
            raise
        raise Diverged(f"the loss cannot be computed ({error})") from error


def _loss(
    output: NetworkOutput, batch: Batch, config: RunConfig, whole_T: Tensor, share: float
) -> tuple[Tensor, Tensor]:
    """The part of a step's loss that this batch is, and that of each task."""
    assert batch.labels_BT is not None and batch.observed_BT is not None
    assert batch.weights_BT is not None, "training batches carry labels"
    total, losses_T = multi_task_loss(
        output.logits_BT,
        batch.labels_BT,
        batch.observed_BT,
        batch.weights_BT,
        config.tasks,
        entire_space=config.model.kind == "esmm",
        out_of_T=whole_T,
    )
    for auxiliary in output.auxiliary_losses.values():
        total = total + auxiliary * share
    return total, losses_T


def _check_finite(amounts: Sequence[float], config: RunConfig) -> None:
    """Refuses a step by what `_Found.amounts` found, the tasks' losses and that of all."""
    value = amounts[len(config.tasks)]
    if math.isfinite(value):
        return
    pairs = zip(config.tasks, amounts, strict=False)
    names = [task.name for task, loss in pairs if not math.isfinite(loss)]
    whose = f"of task {', '.join(names)}" if names else "(an auxiliary loss)"
    raise Diverged(f"the loss {whose} is {value}")


def _observed_of_all(batches: Sequence[Batch], config: RunConfig) -> Tensor:
    """What each task's loss is divided by, `weights_T`."""
    esmm = config.model.kind == "esmm"
    return torch.stack(
        [
            observed_weights(b.labels_BT, b.observed_BT, b.weights_BT, entire_space=esmm)
            for b in batches
            if b.labels_BT is not None and b.observed_BT is not None and b.weights_BT is not None
        ]
    ).sum(0)


def _joined(gradients: Sequence[Tensor | None]) -> Tensor:
    found = [gradient for gradient in gradients if gradient is not None]
    assert len(found) == len(gradients), "every batch reads its embeddings"
    return found[0] if len(found) == 1 else torch.cat(found)
