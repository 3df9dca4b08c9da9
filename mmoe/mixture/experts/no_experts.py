"""`NoExperts`: the pool of a rank that holds none of the experts."""

import copy
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from mmoe.mixture.traits import PoolTraits


class NoExperts(nn.Module):
    """Pool of a rank that holds no experts; only other ranks compute.

    Args:
        output_dim: O, what the experts of the other ranks return; None: not known.
        template: What the experts of the other ranks are, with tensors `[0, …]` of no experts; by
            it this rank can compute where their tensors are brought to it. No sub-module: it has
            nothing to train or to save, and follows `to` and `train` alone. None: not known.

    Example:
        >>> import torch
        >>> from mmoe.mixture import NoExperts
        >>> pool = NoExperts(output_dim=8)
        >>> len(pool), pool.grouped(torch.zeros(0, 3), torch.zeros(1).int()).shape
        (0, torch.Size([0, 8]))
    """

    traits = PoolTraits(static_shapes=True)

    def __init__(self, output_dim: int | None, template: nn.Module | None = None) -> None:
        super().__init__()
        self.output_dim = output_dim
        self._template = (template,)  # in a tuple, so that it is not registered

    @property
    def template(self) -> nn.Module | None:
        """What the experts of the other ranks are."""
        return self._template[0]

    def train(self, mode: bool = True) -> "NoExperts":
        """Sets the mode, of the template too."""
        if self.template is not None:
            self.template.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NoExperts":
        if self.template is not None:
            self.template._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def __len__(self) -> int:
        """0."""
        return 0

    def dense(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns no outputs."""
        return []

    def grouped(self, rows: Tensor, offsets_E1: Tensor) -> Tensor:
        """Maps no rows `x_0D` to no rows `y_0O`, which depend on x as on other ranks.

        Args:
            rows: Without any row.
            offsets_E1: One entry, 0.

        Raises:
            ValueError: Rows came, or the output's width is not known.
        """
        if len(rows):
            raise ValueError(f"rows: expected none for a pool without experts, got {len(rows)}")
        if self.output_dim is None:
            raise ValueError("output_dim: expected the width that the other ranks return, got None")
        return rows.sum(1, keepdim=True).expand(0, self.output_dim)


def without_experts(expert: nn.Module) -> nn.Module:
    """Copies a module, with tensors `[0, …]` in place of its own: stacked, but of no experts."""
    template = copy.deepcopy(expert)
    for tensor in (*template.parameters(), *template.buffers()):
        tensor.data = tensor.data.new_empty(0, *tensor.shape)
    return template


def check_numbers(experts: Sequence[int], num_experts: int) -> None:
    """Refuses numbers that no expert of a pool has."""
    for expert in experts:
        if not 0 <= expert < num_experts:
            raise ValueError(f"experts: expected numbers from 0 to {num_experts - 1}, got {expert}")
