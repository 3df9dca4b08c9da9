"""The pool of experts that all gates share, and the two ways to run it."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config.model import Activation
from mmoe.mixture.mlp import MLP

# Rows per product when a grouped pool scores. A product of another height may round differently,
# and how many rows an expert gets depends on the other rows of the batch; with products of one
# fixed height a row's score does not. 128 rows keep a product busy and waste little at its end.
SCORING_TILE = 128


class ExpertPool(nn.ModuleList):
    """Experts with one output width; each has its own contiguous weights.

    A loop of plain products over contiguous per-expert weights is the fastest form on a CPU: ahead
    of one concatenated product, of `bmm`, and far ahead of a stacked weight indexed in a loop,
    which gives each expert a gradient the size of the whole stack.

    Args:
        experts: Any modules that map `[rows, D]` to `[rows, output_dim]`, of different classes too.
            Where they run grouped, any number of rows can come, none included.
        output_dim: Width of what they return; default: the `output_dim` (or `out_features`) of the
            first expert.

    Raises:
        ValueError: No experts, an unknown output width, or experts that differ in it.

    Example:
        >>> import torch
        >>> from mmoe.mixture import MLP, ExpertPool
        >>> pool = ExpertPool([MLP(8, [16]), torch.nn.Linear(8, 16)])
        >>> x = torch.zeros(3, 8)
        >>> [y.shape for y in pool([x, x])]
        [torch.Size([3, 16]), torch.Size([3, 16])]
    """

    def __init__(self, experts: Iterable[nn.Module], output_dim: int | None = None) -> None:
        super().__init__(experts)
        if not len(self):
            raise ValueError("experts: expected at least one module, got none")
        if output_dim is None:
            output_dim = _width_of(self[0])
        if output_dim is None:
            raise ValueError(
                f"experts: cannot tell the output width of {type(self[0]).__name__}; "
                "give the module an attribute output_dim, or pass ExpertPool(experts, output_dim=…)"
            )
        for e, expert in enumerate(self):
            if _width_of(expert) not in (None, output_dim):
                raise ValueError(
                    f"experts: expert {e} returns width {_width_of(expert)}, expected {output_dim} "
                    "as the others of its pool"
                )
        self.output_dim = output_dim

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs every expert on all rows: one `x_BD` per expert → one `y_BO` per expert."""
        if len(inputs) != len(self):
            raise ValueError(
                f"inputs: expected {len(self)} tensors, one per expert, got {len(inputs)}"
            )
        return [self._checked(e, expert(inputs[e]), inputs[e]) for e, expert in enumerate(self)]

    def grouped(self, rows_RD: Tensor, offsets_E1: Tensor) -> Tensor:
        """Runs each expert on its own rows: expert e takes rows `offsets[e] : offsets[e + 1]`.

        Args:
            rows_RD: Rows, those of one expert contiguous.
            offsets_E1: First row of each expert and, last, the number of rows; int32.

        Returns:
            `y_RO`, row for row.
        """
        sizes = offsets_E1.diff().tolist()
        if len(sizes) != len(self):
            raise ValueError(
                f"offsets_E1: expected {len(self) + 1} entries, one more than experts, got "
                f"{len(sizes) + 1}"
            )
        # split, not slices: the gradient of split is one concatenation, that of every slice is a
        # full-size buffer of zeros.
        parts = rows_RD.split(sizes)
        # Experts without rows run as well: their gradients are then 0, not absent, and an optimizer
        # treats them as it does in dense execution.
        outputs = [
            self._checked(e, self._run(expert, part), part)
            for e, (expert, part) in enumerate(zip(self, parts, strict=True))
        ]
        return torch.cat(outputs)

    def _run(self, expert: nn.Module, x_ND: Tensor) -> Tensor:
        if self.training:
            return expert(x_ND)
        rows = len(x_ND)
        padded = F.pad(x_ND, (0, 0, 0, -rows % SCORING_TILE))
        return torch.cat([expert(tile) for tile in padded.split(SCORING_TILE)])[:rows]

    def _checked(self, e: int, y: Tensor, x: Tensor) -> Tensor:
        if y.shape != (len(x), self.output_dim):
            raise ValueError(
                f"experts: expected shape [{len(x)}, {self.output_dim}] from expert {e} "
                f"({type(self[e]).__name__}), got {list(y.shape)}"
            )
        return y


def mlp_experts(
    num_experts: int,
    input_dim: int,
    hidden: Sequence[int],
    *,
    activation: Activation = "relu",
    dropout: float = 0.0,
) -> ExpertPool:
    """A pool of equal MLPs; the arguments are those of `MLP`.

    Example:
        >>> from mmoe.mixture import mlp_experts
        >>> pool = mlp_experts(8, 32, [64, 16])
        >>> len(pool), pool.output_dim
        (8, 16)
    """
    return ExpertPool(
        MLP(input_dim, hidden, activation=activation, dropout=dropout) for _ in range(num_experts)
    )


def _width_of(expert: nn.Module) -> int | None:
    width = getattr(expert, "output_dim", getattr(expert, "out_features", None))
    return width if isinstance(width, int) else None
