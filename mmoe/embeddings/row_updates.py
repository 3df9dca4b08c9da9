"""Optimizers of tables whose gradients are sparse: only rows that were looked up move."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mmoe.config import EmbeddingOptimizerConfig, TableSpec
from mmoe.config.training import EMBEDDING_OPTIMIZERS

LAST_STEP = "last_step"  # in which a row was moved
_AVERAGES = ("exp_avg", "exp_avg_sq")


class RowGradients(NamedTuple):
    """Rows of a table that a batch looked up, and their gradients.

    Attributes:
        weight: The table.
        rows_R: Numbers of the rows, each once.
        g_RD: Their gradients, added up over the batch.
    """

    weight: Tensor
    rows_R: Tensor
    g_RD: Tensor

    def move(self, steps_RD: Tensor, rate: float) -> None:
        """Moves the rows by `rate` of a step, in place."""
        self.weight.index_add_(0, self.rows_R, steps_RD, alpha=-rate)

    def shrink(self, by_RD: Tensor) -> None:
        """Divides the rows by `1 + by`, in place."""
        self.weight[self.rows_R] = self.weight[self.rows_R] / (1 + by_RD)


class RowUpdate(Protocol):
    """Interface of an update rule for the rows that a batch looked up."""

    def new_state(self, weight: Tensor) -> dict[str, Tensor]:
        """Returns zeros on the table's device, by name; the first dimension is the table's rows."""
        ...

    def __call__(
        self, found: RowGradients, state: Mapping[str, Tensor], *, rate: float, step: int
    ) -> Tensor | float:
        """Moves the rows, in place; `step` counts from 1.

        Returns:
            What gradients were multiplied with: one number, or [R, 1] or [R, D].
        """
        ...


@dataclass(frozen=True)
class Adagrad:
    r"""Adagrad: `s += g²`, `w -= rate · g / (√s + eps)`; row-wise one s a row, of the mean of g².

    Source: Duchi et al. 2011; FBGEMM's EXACT_ADAGRAD and EXACT_ROWWISE_ADAGRAD, which it equals.
    """

    eps: float
    rowwise: bool = True

    def new_state(self, weight: Tensor) -> dict[str, Tensor]:
        """Returns the sums of squares, zeros."""
        shape = weight.shape[:1] if self.rowwise else weight.shape
        return {"sum": torch.zeros(shape, device=weight.device)}

    def __call__(
        self, found: RowGradients, state: Mapping[str, Tensor], *, rate: float, step: int
    ) -> Tensor | float:
        """See `RowUpdate`."""
        _, rows_R, g_RD = found
        squares = g_RD.square().mean(dim=1) if self.rowwise else g_RD.square()
        total = state["sum"][rows_R] + squares
        state["sum"][rows_R] = total
        root = total.sqrt() + self.eps
        root = root[:, None] if self.rowwise else root
        found.move(g_RD / root, rate)
        return rate / root


@dataclass(frozen=True)
class Adam:
    r"""Adam on rows looked up: `m = β₁m + (1−β₁)g`, v of g² alike, `w -= rate · m̂ / (√v̂ + eps)`.

    `m̂ = m / (1 − β₁ᵗ)` and `v̂ = v / (1 − β₂ᵗ)` with t the steps of training so far, not those in
    which the row occurred. A row that a batch does not look up keeps its averages as they are.

    Source: Kingma & Ba 2015, algorithm 1; on rows as in FBGEMM's ADAM.
    """

    betas: tuple[float, float]
    eps: float

    def new_state(self, weight: Tensor) -> dict[str, Tensor]:
        """Returns both averages, zeros."""
        return {name: torch.zeros(weight.shape, device=weight.device) for name in _AVERAGES}

    def __call__(
        self, found: RowGradients, state: Mapping[str, Tensor], *, rate: float, step: int
    ) -> Tensor | float:
        """See `RowUpdate`."""
        _, rows_R, g_RD = found
        moments = []
        for name, beta, value in zip(_AVERAGES, self.betas, (g_RD, g_RD.square()), strict=True):
            average = state[name][rows_R].lerp_(value, 1 - beta)
            state[name][rows_R] = average
            moments.append(average / (1 - beta**step))
        mean, square = moments
        root = square.sqrt_() + self.eps
        found.move(mean / root, rate)
        return rate / root


@dataclass(frozen=True)
class Sgd:
    """SGD: `w -= rate · g`; equals FBGEMM's EXACT_SGD."""

    def new_state(self, weight: Tensor) -> dict[str, Tensor]:
        """Returns nothing: there is no state."""
        return {}

    def __call__(
        self, found: RowGradients, state: Mapping[str, Tensor], *, rate: float, step: int
    ) -> Tensor | float:
        """See `RowUpdate`."""
        found.move(found.g_RD, rate)
        return rate


def full_adagrad(eps: float) -> Adagrad:
    """Returns the rule with one number for each weight."""
    return Adagrad(eps, rowwise=False)


def row_update(config: EmbeddingOptimizerConfig) -> RowUpdate:
    """Returns the rule that a config asks for."""
    return EMBEDDING_OPTIMIZERS.implementation(config)(**config.keywords())


def decays_of(tables: Iterable[TableSpec], config: EmbeddingOptimizerConfig) -> dict[str, float]:
    """Returns the decay of each table that has one; of managed ids the rows change hands."""
    if not config.weight_decay:
        return {}
    return {table.name: config.weight_decay for table in tables if table.decays}


class TableOptimizer:
    r"""Applies one rule to every table, each at its own rate, and shrinks rows of ids.

    With a decay λ each step adds `½ λ |w|²` of every row to the loss. A row is moved only when it
    has a gradient, and then makes up for the n steps since it had: `w /= 1 + n λ rate`, with what
    the rule multiplied the gradient with as rate. So a frequent id hardly feels it, and a rare one
    has to have shown much to be far from zero.

    Args:
        tables: Parameters [rows, dim] with sparse gradients, by name.
        rates: Of each table.
        update: The rule.
        decays: λ of the tables that have one.

    Source: the proximal step of Duchi & Singer, "Efficient online and batch learning using forward
        backward splitting" (JMLR 2009), section 5.2: late, of all steps at once.
    """

    def __init__(
        self,
        tables: Mapping[str, nn.Parameter],
        rates: Mapping[str, float],
        update: RowUpdate,
        decays: Mapping[str, float] | None = None,
    ) -> None:
        self.tables, self.rates, self.update = tables, rates, update
        self.decays = {name: decay for name, decay in (decays or {}).items() if name in tables}
        self.factor = 1.0
        self.states = {name: self._new_state(name) for name in tables}
        self.steps = torch.zeros(1, dtype=torch.int64)  # on the CPU, where it is read

    def _new_state(self, name: str) -> dict[str, Tensor]:
        weight = self.tables[name]
        state = self.update.new_state(weight)
        if name in self.decays:
            state[LAST_STEP] = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
        return state

    def state(self) -> dict[str, Tensor]:
        """Returns its state by name, a row for each row; see `EmbeddingBackend.optimizer_state`."""
        tensors = {
            f"{table}/{name}": tensor
            for table, state in self.states.items()
            for name, tensor in state.items()
        }
        counts = self.decays or isinstance(self.update, Adam)
        return {**tensors, "steps": self.steps} if counts else tensors

    @torch.no_grad()
    def step(self) -> None:
        """Applies and clears the gradients; rows without any, or with zeros, stay as they are."""
        self.steps += 1
        step = int(self.steps)
        # All at once: tables of one TorchRec kernel are parts of one tensor, gradients included
        gradients = {name: weight.grad for name, weight in self.tables.items()}
        for name, weight in self.tables.items():
            weight.grad = None
            gradient = gradients[name]
            if gradient is None:
                continue
            found = RowGradients(weight.data, *_moved_rows(gradient))
            rate = self.rates[name] * self.factor
            moved = self.update(found, self.states[name], rate=rate, step=step)
            if name in self.decays:
                self._shrink(name, found, moved, step)

    def _shrink(self, name: str, found: RowGradients, rate: Tensor | float, step: int) -> None:
        last = self.states[name][LAST_STEP]
        moved_R = found.g_RD.any(dim=1)  # a gradient of zeros would divide the rate by eps alone
        last_R = last[found.rows_R]
        last[found.rows_R] = torch.where(moved_R, step, last_R)
        by_RD = self.decays[name] * (step - last_R)[:, None] * rate
        found.shrink(torch.where(moved_R[:, None], by_RD, 0.0))


def _moved_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the rows that have a gradient, each once, and their gradients."""
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        return gradient.indices()[0], gradient.values()
    rows_R = gradient.any(dim=1).nonzero().view(-1)
    return rows_R, gradient[rows_R]
