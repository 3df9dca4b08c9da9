"""`MaskNet`: layers of a row whose entries are multiplied by a mask that the row computes."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture.batch_invariant import apply_linear
from mmoe.mixture.experts.mlp import fast_dropout
from mmoe.models.interactions.layers import Interaction

Arrangement = Literal["parallel", "serial"]

# Of an entry, by how much a fresh mask changes it: products are there from the start, and a row
# keeps its size
_SHARE = 0.3


class MaskNet(Interaction):
    """Multiplies a row by masks of its own, and puts it through a layer: several such blocks.

    `m_l = 1 + A_l relu(C_l x + c_l) + a_l`, `h_l = relu(norm(W_l (m_l ⊙ v_l)))`. v_l is the
    normalised input n(x) in every block (`parallel`; what comes out is `[h_1, h_2, …]`), or what
    the block before gave, `v_1 = n(x)`, `v_l = h_{l−1}` (`serial`; the last h comes out). With an
    `output` that is projected, `y = V h + b`. norm is a layer normalisation; n normalises each
    embedding of `fields` alone, and leaves other entries as they are.

    A row is given all together, and its fields need not be told: an expert that reads what gates
    mixed knows of none, and `n(x) = x`.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        input_dim: Width D of a row.
        output: Width of what comes back; None: that of the blocks, without V.
        blocks: How many.
        arrangement: `parallel` or `serial`.
        dim: Width of each h.
        mask_hidden: Width of the layer that computes a mask.
        dropout: Probability that an entry of an h is zeroed while training.
        fields: Start and width of each embedding in a row.

    Example:
        >>> MaskNet(10, 4, blocks=3, dim=8)(torch.zeros(5, 10)).shape
        torch.Size([5, 4])
        >>> MaskNet(10, None, blocks=3, dim=8).output_dim
        24

    Source: Wang, She & Zhang, "MaskNet: introducing feature-wise multiplication to CTR ranking
        models by instance-guided mask" (DLP-KDD 2021), equations 5 to 11. Masks are written as
        1 + … so that they begin near 1, and so that an input of a later run can begin with weights
        of zero; the gain and bias of n are left out, since mask and W do what a gain does.
    """

    aggregates: Any  # an `nn.ModuleList` of `nn.Linear`
    masks: Any  # likewise
    hidden: Any  # likewise

    def __init__(
        self,
        input_dim: int,
        output: int | None = 128,
        *,
        blocks: int = 2,
        arrangement: Arrangement = "parallel",
        dim: int = 64,
        mask_hidden: int = 256,
        dropout: float = 0.0,
        fields: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        self.input_dim, self.serial, self.dropout = input_dim, arrangement == "serial", dropout
        # Those of one width are normalised at once
        self.field_widths = sorted({width for _, width in fields})
        for width in self.field_widths:
            starts = [start for start, own in fields if own == width]
            columns = [start + i for start in starts for i in range(width)]
            self.register_buffer(f"columns_{width}", torch.tensor(columns), persistent=False)
        widths = [dim if self.serial and block else input_dim for block in range(blocks)]
        self.aggregates = nn.ModuleList(nn.Linear(input_dim, mask_hidden) for _ in widths)
        self.masks = nn.ModuleList(nn.Linear(mask_hidden, width) for width in widths)
        self.hidden = nn.ModuleList(nn.Linear(width, dim, bias=False) for width in widths)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in widths)
        together = dim if self.serial else dim * blocks
        self.project = None if output is None else nn.Linear(together, output)
        self.output_dim = output or together
        self.reset_parameters()

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        found: dict[str, dict[int, str]] = {}
        for block in range(len(self.masks)):
            found[f"aggregates.{block}.weight"] = {1: "inputs"}
            if not (self.serial and block):
                masks = (f"masks.{block}.weight", f"masks.{block}.bias")
                found |= {name: {0: "inputs"} for name in masks}
                found[f"hidden.{block}.weight"] = {1: "inputs"}
        return found

    def reset_parameters(self) -> None:
        """Draws new weights from torch's random generator."""
        for layers, gain in ((self.aggregates, 2**0.5), (self.masks, _SHARE), (self.hidden, 1.0)):
            for layer in layers:
                nn.init.normal_(layer.weight, std=gain / layer.in_features**0.5)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        if self.project is not None:
            # Half of the entries are 0, behind ReLU
            nn.init.kaiming_normal_(self.project.weight, nonlinearity="relu")
            nn.init.zeros_(self.project.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., input_dim]` to `[..., output_dim]`."""
        normed = self._normalise(x)
        read, found = normed, []
        for block in range(len(self.masks)):
            h = self._block(block, x, read)
            found.append(h)
            read = h if self.serial else normed
        together = found[-1] if self.serial else torch.cat(found, -1)
        if self.project is None:
            return together
        return apply_linear(self.project, together)

    def _block(self, block: int, x: Tensor, read: Tensor) -> Tensor:
        aggregate = F.relu(apply_linear(self.aggregates[block], x))
        mask = apply_linear(self.masks[block], aggregate) + 1
        h = apply_linear(self.hidden[block], mask * read)
        return fast_dropout(F.relu(self.norms[block](h)), self.dropout, self.training)

    def _normalise(self, x: Tensor) -> Tensor:
        """n(x)."""
        if not self.field_widths:
            return x
        normed = x
        for width in self.field_widths:
            columns = self.get_buffer(f"columns_{width}")
            e_BFD = x.index_select(-1, columns).unflatten(-1, (-1, width))
            e_BC = F.layer_norm(e_BFD, (width,)).flatten(-2)
            normed = normed.index_copy(-1, columns, e_BC.to(x.dtype))
        return normed
