"""`InputLayers`: what the network makes of dense columns that it does not read as they are."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config import InputLayerSpec, PiecesSpec, ProjectionSpec
from mmoe.mixture.batch_invariant import stable_linear


class InputLayers(nn.ModuleDict):
    """Replaces the dense columns of some features by linear projections or pieces of them.

    Projections have no bias: the layers that read them have their own, and a missing vector, which
    is 0, is then told by the weights of its own column alone. Pieces have no weights at all.

    Args:
        specs: The features, in the order of their columns, which do not overlap.

    Example:
        >>> import torch
        >>> from mmoe.config import PiecesSpec, ProjectionSpec
        >>> title = ProjectionSpec(name="title", first=1, width=6, dim=2)
        >>> price = PiecesSpec(name="price", first=8, pieces=20, missing=True)
        >>> InputLayers([title, price])(torch.zeros(4, 9)).shape
        torch.Size([4, 25])
    """

    def __init__(self, specs: Sequence[InputLayerSpec]) -> None:
        super().__init__()
        self.specs = tuple(specs)
        for spec in specs:
            if isinstance(spec, ProjectionSpec):
                linear = nn.Linear(spec.width, spec.dim, bias=False)
                # Projections have about the variance of the numbers that they are made of
                nn.init.normal_(linear.weight, std=spec.width**-0.5)
                self[_key(spec.name)] = linear

    def forward(self, dense_BF: Tensor) -> Tensor:
        """Replaces them; other columns stay as they are, in their order.

        Args:
            dense_BF: float32 under autocast too: a position of 200.1 is 200 in bfloat16.
        """
        parts, at = [], 0
        for spec in self.specs:
            stop = spec.first + spec.width
            own_BK = dense_BF[:, spec.first : stop]
            made_BC = (
                expand_pieces(own_BK, spec)
                if isinstance(spec, PiecesSpec)
                else self._project(own_BK, spec)
            )
            parts += [dense_BF[:, at : spec.first], made_BC]
            at = stop
        return torch.cat([*parts, dense_BF[:, at:]], dim=1)

    def _project(self, own_BK: Tensor, spec: ProjectionSpec) -> Tensor:
        product = F.linear if self.training else stable_linear
        weight: Tensor = self[_key(spec.name)].weight  # type: ignore[assignment]
        return product(own_BK.contiguous(), weight)


def expand_pieces(position_B1: Tensor, spec: PiecesSpec) -> Tensor:
    """Returns the piecewise linear encoding of a number, from its position among the pieces.

    Column p of P is `clip(u − p, 0, 1) − 0.5`: how far u has gone through piece p. All are 0 where
    the number is missing (u < 0), which a last column says where `spec.missing`.

    Args:
        position_B1: u, in [0, P]: whole pieces below the number, and its fraction of the next.
        spec: P, and whether a column says that the number is missing.

    Returns:
        `[B, P]`, or `[B, P + 1]`.

    Source: Gorishniy, Rubachev, Babenko, "On embeddings for numerical features in tabular deep
    learning", NeurIPS 2022, section 3.2.

    Example:
        >>> import torch
        >>> from mmoe.config import PiecesSpec
        >>> spec = PiecesSpec(name="price", first=0, pieces=3, missing=True)
        >>> expand_pieces(torch.tensor([[1.25], [-1.0]]), spec)
        tensor([[ 0.5000, -0.2500, -0.5000,  0.0000],
                [ 0.0000,  0.0000,  0.0000,  1.0000]])
    """
    start_P = torch.arange(spec.pieces, device=position_B1.device, dtype=position_B1.dtype)
    missing_B1 = position_B1 < 0
    gone_BP = (position_B1 - start_P).clamp(0, 1) - 0.5
    gone_BP = gone_BP.masked_fill(missing_B1, 0.0)
    return torch.cat([gone_BP, missing_B1.to(gone_BP)], dim=1) if spec.missing else gone_BP


def widened_by(specs: Sequence[InputLayerSpec]) -> int:
    """Returns by how much these layers make the input wider (below 0: narrower).

    Example:
        >>> from mmoe.config import ProjectionSpec
        >>> widened_by([ProjectionSpec(name="title", first=1, width=6, dim=2)])
        -4
    """
    return sum(len(spec.columns) - spec.width for spec in specs)


def replaced_names(names: Sequence[str], specs: Sequence[InputLayerSpec]) -> list[str]:
    """Names the columns that `InputLayers` returns.

    Example:
        >>> from mmoe.config import ProjectionSpec
        >>> specs = [ProjectionSpec(name="t", first=1, width=2, dim=1)]
        >>> replaced_names(["age", "t[0]", "t[1]", "size"], specs)
        ['age', 't projected[0]', 'size']
    """
    found, at = [], 0
    for spec in specs:
        found += [*names[at : spec.first], *spec.columns]
        at = spec.first + spec.width
    return [*found, *names[at:]]


def projected_feature(tensor: str) -> str | None:
    """Returns the feature whose projection a tensor of a network is, by its name; None: of none.

    Example:
        >>> projected_feature("inputs.title_projection.weight"), projected_feature("towers.0.mlp")
        ('title', None)
    """
    prefix, suffix = "inputs.", f"{_key('')}.weight"
    if not tensor.startswith(prefix) or not tensor.endswith(suffix):
        return None
    return tensor[len(prefix) : -len(suffix)]


def _key(name: str) -> str:
    """A name that no method of a module has."""
    return f"{name}_projection"
