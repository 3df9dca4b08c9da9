"""`Stored`: tensors of an earlier run, read one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmoe.checkpoint.stored_tensors import StoredTensors
from mmoe.parallel.sharded_tensors import Shard


@dataclass(frozen=True)
class Stored:
    """Tensors of a checkpoint whose names begin with a prefix; names come without it.

    Numbers are read on demand, so that no rank holds the earlier model beside its own, whatever
    ranks wrote it.

    Attributes:
        tensors: A part of the checkpoint.
        prefix: `network`, `tables` …
        names: Those there are.
    """

    tensors: StoredTensors
    prefix: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, tensors: StoredTensors, prefix: str) -> "Stored":
        """Returns all tensors that begin with the prefix."""
        return cls(tensors, prefix, tuple(tensors.names(prefix)))

    def nothing(self) -> "Stored":
        """Returns an empty one, as if there were no such tensors."""
        return replace(self, names=())

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Returns the shape of a whole tensor; None: it is not there."""
        return self.tensors.shape(f"{self.prefix}.{name}") if name in self.names else None

    def read(self, name: str) -> Tensor:
        """Reads one tensor, whole, on the CPU."""
        full = f"{self.prefix}.{name}"
        tensor = torch.empty(self.tensors.shape(full), dtype=self.tensors.dtype(full))
        self.tensors.load({full: tensor}, all_names=False)
        return tensor

    def load(self, targets: Mapping[str, Sequence[Shard]]) -> None:
        """Fills tensors or shards in place."""
        self.tensors.load(targets, self.prefix, all_names=False)
