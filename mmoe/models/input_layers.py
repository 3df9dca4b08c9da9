"""`InputLayers`: what the network makes of dense columns that it does not read as they are."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config import InputLayerSpec, PiecesSpec, ProjectionSpec
from mmoe.mixture import stable_linear
from mmoe.mixture.axes import Entry, Names, Part


class InputLayers(nn.ModuleDict):
    """Replaces the dense columns of some features by linear projections or pieces of them.

    Projections have no bias: the layers that read them have their own, and a missing vector, which
    is 0, is then told by the weights of its own column alone. Pieces have no weights at all, and
    stand behind all other columns: those of features with as many pieces are made at once.

    Args:
        specs: The features, in the order of their columns, which do not overlap.
        of_levels: By level, those of them that are of it, where the dense columns of each level
            come apart; their columns are counted among the level's.

    Example:
        >>> title = ProjectionSpec(name="title", first=1, width=6, dim=2)
        >>> price = PiecesSpec(name="price", first=8, pieces=20, missing=True)
        >>> InputLayers([title, price])(torch.zeros(4, 9)).shape
        torch.Size([4, 25])
    """

    def __init__(
        self,
        specs: Sequence[InputLayerSpec],
        of_levels: Mapping[str, Sequence[InputLayerSpec]] | None = None,
    ) -> None:
        super().__init__()
        for spec in specs:
            if isinstance(spec, ProjectionSpec):
                linear = nn.Linear(spec.width, spec.dim, bias=False)
                # Projections have about the variance of the numbers that they are made of
                nn.init.normal_(linear.weight, std=spec.width**-0.5)
                self[_key(spec.name)] = linear
        self.specs = tuple(specs)
        self.of_levels = {"": self.specs, **{k: tuple(v) for k, v in (of_levels or {}).items()}}
        for level, own in self.of_levels.items():
            in_pieces = _in_pieces(own)
            for pieces in _distinct(in_pieces):
                places = [spec for spec in in_pieces if spec.pieces == pieces]
                self._keep(f"{level}positions_{pieces}", places)
            self._keep(f"{level}told_missing", [spec for spec in in_pieces if spec.missing])

    def forward(self, dense_BF: Tensor, level: str = "") -> Tensor:
        """Replaces them; other columns stay as they are, in their order.

        Args:
            dense_BF: float32 under autocast too: a position of 200.1 is 200 in bfloat16.
            level: Whose columns these are; default: all.
        """
        parts, at = [], 0
        specs = self.of_levels[level]
        for spec in specs:
            parts.append(dense_BF[:, at : spec.first])
            at = spec.first + spec.width
            if isinstance(spec, ProjectionSpec):
                parts.append(self._project(dense_BF[:, spec.first : at], spec))
        parts.append(dense_BF[:, at:])
        in_pieces = _in_pieces(specs)
        for pieces in _distinct(in_pieces):
            places = self.get_buffer(f"{level}positions_{pieces}")
            parts.append(expand_pieces(dense_BF.index_select(1, places), pieces))
        if in_pieces:
            told_BM = dense_BF.index_select(1, self.get_buffer(f"{level}told_missing"))
            parts.append((told_BM < 0).to(dense_BF))
        return torch.cat(parts, dim=1)

    def named_parts(self, names: Names) -> list[Part]:
        """Says which feature each projection is of."""
        own = {spec.name: _key(spec.name) for spec in self.specs if _key(spec.name) in self}
        return [Part(key, (Entry("features", name),), names) for name, key in own.items()]

    def _project(self, own_BK: Tensor, spec: ProjectionSpec) -> Tensor:
        product = F.linear if self.training else stable_linear
        weight = self.get_parameter(f"{_key(spec.name)}.weight")
        return product(own_BK.contiguous(), weight)

    def _keep(self, name: str, specs: Sequence[PiecesSpec]) -> None:
        """Keeps the places of positions on the network's device, and out of its files."""
        places = torch.tensor([spec.first for spec in specs], dtype=torch.int64)
        self.register_buffer(name, places, persistent=False)


def expand_pieces(position_BK: Tensor, pieces: int) -> Tensor:
    """Returns the piecewise linear encoding of numbers, from their positions among P pieces.

    Column p of a number is `clip(u − p, 0, 1) − 0.5`: how far u has gone through piece p. All are 0
    where the number is missing.

    Args:
        position_BK: u of K numbers, in [0, P]: whole pieces below the number, and its fraction of
            the next; below 0 where it is missing.
        pieces: P.

    Returns:
        `[B, K·P]`, the first number's columns first.

    Source: Gorishniy, Rubachev, Babenko, "On embeddings for numerical features in tabular deep
    learning", NeurIPS 2022, section 3.2.

    Example:
        >>> expand_pieces(torch.tensor([[1.25], [-1.0]]), 3)
        tensor([[ 0.5000, -0.2500, -0.5000],
                [ 0.0000,  0.0000,  0.0000]])
    """
    start_P = torch.arange(pieces, device=position_BK.device, dtype=position_BK.dtype)
    # −0.5 where the number is known: a sum instead of a mask over all columns
    known_BK = (position_BK + 1).clamp(0, 1)
    gone_BKP = (position_BK.unsqueeze(2) - start_P).clamp_(0, 1)
    return gone_BKP.sub_(known_BK.unsqueeze(2), alpha=0.5).flatten(1)


def widened_by(specs: Sequence[InputLayerSpec]) -> int:
    """Returns by how much these layers make the input wider (below 0: narrower).

    Example:
        >>> widened_by([ProjectionSpec(name="title", first=1, width=6, dim=2)])
        -4
    """
    return sum(len(spec.columns) - spec.width for spec in specs)


def replaced_names(names: Sequence[str], specs: Sequence[InputLayerSpec]) -> list[str]:
    """Names the columns that `InputLayers` returns.

    Example:
        >>> specs = [ProjectionSpec(name="t", first=1, width=2, dim=1)]
        >>> replaced_names(["age", "t[0]", "t[1]", "size"], specs)
        ['age', 't projected[0]', 'size']
    """
    found, at = [], 0
    for spec in specs:
        found += names[at : spec.first]
        at = spec.first + spec.width
        if isinstance(spec, ProjectionSpec):
            found += spec.columns
    found += names[at:]
    in_pieces = _in_pieces(specs)
    for spec in in_pieces:
        found += spec.columns[: spec.pieces]
    return found + [spec.columns[-1] for spec in in_pieces if spec.missing]


def _key(name: str) -> str:
    """A name that no method of a module has."""
    return f"{name}_projection"


def _distinct(in_pieces: Sequence[PiecesSpec]) -> list[int]:
    """Returns the number of distinct pieces, of features of as many each."""
    return sorted({spec.pieces for spec in in_pieces})


def _in_pieces(specs: Sequence[InputLayerSpec]) -> list[PiecesSpec]:
    """Those that are expanded, in the order of the columns that they become."""
    found = [spec for spec in specs if isinstance(spec, PiecesSpec)]
    return sorted(found, key=lambda spec: spec.pieces)
