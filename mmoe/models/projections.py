"""`InputProjections`: linear layers over columns of the network's input."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config import ProjectionSpec
from mmoe.mixture.batch_invariant import stable_linear


class InputProjections(nn.ModuleDict):
    """Replaces the columns of some features by linear projections of them.

    Without a bias: the layers that read them have their own, and a missing vector, which is 0, is
    then told by the weights of its own column alone.

    Args:
        specs: The features, in the order of their columns, which do not overlap.

    Example:
        >>> import torch
        >>> from mmoe.config import ProjectionSpec
        >>> spec = ProjectionSpec(name="title", first=1, width=6, dim=2)
        >>> InputProjections([spec])(torch.zeros(4, 9)).shape
        torch.Size([4, 5])
    """

    def __init__(self, specs: Sequence[ProjectionSpec]) -> None:
        super().__init__()
        self.specs = tuple(specs)
        for spec in specs:
            linear = nn.Linear(spec.width, spec.dim, bias=False)
            # Projections have about the variance of the numbers that they are made of
            nn.init.normal_(linear.weight, std=spec.width**-0.5)
            self[_key(spec.name)] = linear

    def forward(self, x_BD: Tensor) -> Tensor:
        """Projects; other columns stay as they are, in their order."""
        product = F.linear if self.training else stable_linear
        parts, at = [], 0
        for spec in self.specs:
            stop = spec.first + spec.width
            weight: Tensor = self[_key(spec.name)].weight  # type: ignore[assignment]
            own_BK = x_BD[:, spec.first : stop].contiguous()
            parts += [x_BD[:, at : spec.first], product(own_BK, weight)]
            at = stop
        return torch.cat([*parts, x_BD[:, at:]], dim=1)


def narrowed_by(specs: Sequence[ProjectionSpec]) -> int:
    """Returns by how much projections make the input narrower (below 0: wider).

    Example:
        >>> from mmoe.config import ProjectionSpec
        >>> narrowed_by([ProjectionSpec(name="title", first=1, width=6, dim=2)])
        4
    """
    return sum(spec.width - spec.dim for spec in specs)


def projected_names(names: Sequence[str], specs: Sequence[ProjectionSpec]) -> list[str]:
    """Names the columns that `InputProjections` returns.

    Example:
        >>> from mmoe.config import ProjectionSpec
        >>> specs = [ProjectionSpec(name="t", first=1, width=2, dim=1)]
        >>> projected_names(["age", "t[0]", "t[1]", "size"], specs)
        ['age', 't projected[0]', 'size']
    """
    found, at = [], 0
    for spec in specs:
        found += names[at : spec.first]
        found += [f"{spec.name} projected[{i}]" for i in range(spec.dim)]
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
