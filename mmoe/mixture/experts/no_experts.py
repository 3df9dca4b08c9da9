"""`NoExperts`: the pool of a rank that holds none of the experts."""

from collections.abc import Sequence

from torch import Tensor, nn

from mmoe.mixture.traits import PoolTraits


class NoExperts(nn.Module):
    """Pool of a rank that holds no experts; only other ranks compute.

    Args:
        output_dim: O, what the experts of the other ranks return; None: not known.

    Example:
        >>> import torch
        >>> from mmoe.mixture import NoExperts
        >>> pool = NoExperts(output_dim=8)
        >>> len(pool), pool.grouped(torch.zeros(0, 3), torch.zeros(1).int()).shape
        (0, torch.Size([0, 8]))
    """

    traits = PoolTraits(static_shapes=True)

    def __init__(self, output_dim: int | None) -> None:
        super().__init__()
        self.output_dim = output_dim

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


def check_numbers(experts: Sequence[int], num_experts: int) -> None:
    """Refuses numbers that no expert of a pool has."""
    for expert in experts:
        if not 0 <= expert < num_experts:
            raise ValueError(f"experts: expected numbers from 0 to {num_experts - 1}, got {expert}")
