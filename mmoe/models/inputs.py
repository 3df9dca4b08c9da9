"""A batch as a network and what adds to its logits read it: numbers and embeddings side by side."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mmoe.datasets import Batch
from mmoe.mixture import Inputs


class NetworkInputs(NamedTuple):
    """Inputs of N rows, or of the requests that rows share.

    Attributes:
        dense_NF: Numbers, as the network's `inputs` return them, float32.
        x_NE: Pooled embeddings, then sequences; None: nothing is looked up.
    """

    dense_NF: Tensor
    x_NE: Tensor | None

    @property
    def wide(self) -> Tensor:
        """Joins all of them side by side, float32."""
        return self.dense_NF if self.x_NE is None else torch.cat([self.dense_NF, self.x_NE], dim=1)

    @property
    def joined(self) -> Tensor:
        """Joins all of them side by side, as the network reads them."""
        return self.dense_NF if self.x_NE is None else join_inputs(self.dense_NF, self.x_NE)


class Rows(Protocol):
    """B rows of a batch, read: looked up, encoded and in columns."""

    @property
    def batch(self) -> Batch:
        """The batch, every row with all of its own ids and numbers."""
        ...

    @property
    def all(self) -> NetworkInputs:
        """Returns all columns of each row."""
        ...

    @property
    def others(self) -> NetworkInputs:
        """Returns all columns but those of the display, which `model.bias` reads alone."""
        ...

    @property
    def read(self) -> Tensor | Inputs:
        """Everything that the levels of the network read."""
        ...


class PlainRows(NamedTuple):
    """Rows that share nothing."""

    batch: Batch
    all: NetworkInputs
    others: NetworkInputs

    @property
    def read(self) -> Tensor:
        """The other columns side by side."""
        return self.others.joined


class Added(NamedTuple):
    """Numbers to be added to the logits of towers.

    Attributes:
        logits_BR: A column for each logit that differs from row to row, or one a task.
        mixed_T: Tasks whose own logits stay; those of others are replaced. None: all stay.
        one_a_task: Whether there is one column a task, for its first logit.
    """

    logits_BR: Tensor
    mixed_T: Tensor | None = None
    one_a_task: bool = False


class LogitTerm(Protocol):
    """A part of a model whose logits are added to those of the towers."""

    def added(self, rows: Rows) -> Added | None:
        """Computes what is added; None: nothing, as of rows without embeddings."""
        ...


def join_inputs(dense_BF: Tensor, x_BD: Tensor) -> Tensor:
    """Returns `[dense, x]`, under bfloat16 autocast in bfloat16.

    Experts and gates would each cast it otherwise, and `cat` would write it once more: with 3,000
    columns these copies took as long as the gates.

    Args:
        dense_BF: Dense features, float32.
        x_BD: Embeddings, float32.

    Returns:
        `[B, F + D]`, float32 or bfloat16; the gradients are float32.

    Example:
        >>> join_inputs(torch.zeros(2, 3), torch.ones(2, 4)).shape
        torch.Size([2, 7])
    """
    device = dense_BF.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if dtype == torch.bfloat16 and x_BD.dtype == torch.float32:
        return _Narrow.apply(dense_BF, x_BD)
    return torch.cat([dense_BF, x_BD], dim=1) if dense_BF.shape[1] else x_BD


class _Narrow(torch.autograd.Function):
    """Joins and rounds in one pass, and widens the gradient in one."""

    @staticmethod
    def forward(ctx: Any, dense_BF: Tensor, x_BD: Tensor) -> Tensor:
        ctx.split = dense_BF.shape[1]
        out = x_BD.new_empty(len(x_BD), ctx.split + x_BD.shape[1], dtype=torch.bfloat16)
        out[:, : ctx.split] = dense_BF
        out[:, ctx.split :] = x_BD
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grads
        needs_dense, needs_x = ctx.needs_input_grad
        return (
            grad[:, : ctx.split].float() if needs_dense else None,
            grad[:, ctx.split :].float() if needs_x else None,
        )
