"""`SequenceInputs`: the encoders of a run's sequences."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.config import SEQUENCE_ENCODERS, FeatureSpec, SequenceSpec
from mmoe.datasets import FeatureEncoder
from mmoe.embeddings import Lookups
from mmoe.mixture.axes import Entry, Names, Part
from mmoe.models.sequences.events import Events
from mmoe.process_settings import borrowed_generators


class SequenceInputs(nn.ModuleDict):
    """Makes columns of x of the events that were looked up, and puts them behind the others.

    Args:
        specs: The sequences.
        features: All that are looked up, in the order of `Lookups`.
        dims: Width of each table.

    Attributes:
        columns: Name and width of each vector that it makes, in their order.
        output_dim: Width of all of them.

    Raises:
        ValueError: An encoder does not go with the width of its events.
    """

    def __init__(
        self,
        specs: Sequence[SequenceSpec],
        features: Sequence[FeatureSpec],
        dims: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.specs = tuple(specs)
        unpooled = [feature.name for feature in features if feature.pooling == "none"]
        pooled = [feature for feature in features if feature.pooling != "none"]
        widths = [dims[feature.table] for feature in pooled]
        starts = dict(zip([f.name for f in pooled], accumulate(widths, initial=0), strict=False))
        width = {feature.name: dims[feature.table] for feature in features}
        self._events = [[unpooled.index(name) for name in spec.events] for spec in specs]
        self._gaps = [None if s.gap is None else unpooled.index(s.gap) for s in specs]
        self._targets = [[(starts[name], width[name]) for name in s.targets] for s in specs]
        self.columns: list[tuple[str, int]] = []
        for spec in specs:
            own = sum(width[name] for name in spec.events)
            make = SEQUENCE_ENCODERS.implementation(spec.encoder)
            encoder = make(own, spec.max_length, **spec.encoder.keywords())
            self[_key(spec.name)] = encoder
            self.columns.append((f"{spec.name} encoded", encoder.output_dim))
            self.columns += [(f"{spec.name} latest {n + 1}", own) for n in range(spec.unpooled)]
        self.output_dim = sum(columns for _, columns in self.columns)

    def forward(self, lookups: Lookups) -> Tensor:
        """Computes x: pooled embeddings, then the encoded sequences, `[B, D + output_dim]`."""
        parts = [lookups.x_BD]
        for number in range(len(self.specs)):
            targets = [lookups.x_BD[:, at : at + width] for at, width in self._targets[number]]
            target_BD = torch.cat(targets, dim=1) if targets else None
            events = self.events_of(number, lookups)._replace(target_BD=target_BD)
            parts += self.encode(number, events)
        return torch.cat(parts, dim=1)

    def named_parts(self, names: Names) -> list[Part]:
        """Says which sequence each encoder is of."""
        specs = self.specs
        return [Part(_key(spec.name), (Entry("features", spec.name),), names) for spec in specs]

    def encode(self, number: int, events: Events) -> list[Tensor]:
        """Makes the columns of one sequence, as wide as `columns` says."""
        spec = self.specs[number]
        found = [self[_key(spec.name)](events).to(events.e_VD.dtype)]
        if spec.unpooled:
            found.append(events.latest(spec.unpooled))
        return found

    def events_of(self, number: int, lookups: Lookups) -> Events:
        """Returns the events of one sequence, without its targets."""
        found = [lookups.events[s] for s in self._events[number]]
        e_VD = found[0] if len(found) == 1 else torch.cat(found, dim=1)
        gap = self._gaps[number]
        if gap is not None:
            e_VD = e_VD + lookups.events[gap]
        lengths_SB: Any = lookups.lengths_SB
        return Events(e_VD, lengths_SB[self._events[number][0]])


def _key(name: str) -> str:
    """A name that no method of a module has."""
    return f"{name}_encoder"


def build_sequences(encoder: FeatureEncoder) -> SequenceInputs | None:
    """Makes the encoders of a run's sequences; None: there are none."""
    if not encoder.sequences:
        return None
    dims = {table.name: table.dim for table in encoder.tables}
    features = [*encoder.categorical, *encoder.lists]
    return SequenceInputs(encoder.sequences, features, dims)


def sequence_columns(encoder: FeatureEncoder) -> list[tuple[str, int]]:
    """Names the vectors that sequences become, in their order, each with its width."""
    with borrowed_generators():  # made to be asked for names alone
        sequences = build_sequences(encoder)
    return [] if sequences is None else sequences.columns
