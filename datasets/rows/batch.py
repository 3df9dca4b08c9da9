"""`Batch`: rows ready for the network."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """B rows as tensors; rows from `num_rows` on are padding (no label, missing ids).

    Attributes:
        dense_BF: float32, scaled numbers.
        values: int64 [V], ids, feature-major: all rows of feature 0, then of feature 1, …; first
            the single-id features, then the list features.
        lengths_CB: int32 [C · B], flat, ids of each (feature, row), feature-major.
        num_rows: Rows that are not padding.
        labels_BT: float32, what tasks are trained on, 0 where unobserved; None when scoring.
        observed_BT: bool; None when scoring.
        weights_BT: float32; None when scoring.
        id_weights: float32 [V], the weight of each id, 1 for features without; None where no
            feature has weights.
        groups_B: int64, number of each row's group, below B; None where no loss compares rows.
        domains_B: int32, number of each row's domain, that behind the last one where it has none
            that is known; None: the run has no domains.
        requests_B: int64, place of each row's request among the batch's Q; None where features have
            no requests. Where there are: dense_BF has the columns of rows alone, and a feature of
            requests has its ids in the first Q of the B places of values and lengths_CB, and none
            in the others.
        request_dense_QF: float32, scaled numbers of the Q requests.
    """

    dense_BF: torch.Tensor
    values: torch.Tensor
    lengths_CB: torch.Tensor
    num_rows: int
    labels_BT: torch.Tensor | None = None
    observed_BT: torch.Tensor | None = None
    weights_BT: torch.Tensor | None = None
    id_weights: torch.Tensor | None = None
    groups_B: torch.Tensor | None = None
    domains_B: torch.Tensor | None = None
    requests_B: torch.Tensor | None = None
    request_dense_QF: torch.Tensor | None = None

    @classmethod
    def of_arrays(cls, num_rows: int, **arrays: np.ndarray | None) -> "Batch":
        """Makes a batch of NumPy arrays, whose memory it shares; by the names of the tensors."""
        given = {name: array for name, array in arrays.items() if array is not None}
        tensors: dict[str, Any] = {name: torch.from_numpy(a) for name, a in given.items()}
        return cls(num_rows=num_rows, **tensors)

    def __len__(self) -> int:
        """B, padding included."""
        return self.dense_BF.shape[0]

    def to(self, device: torch.device) -> "Batch":
        """Copies the rows to another device; returns this batch itself where it is there already.

        To a GPU they go through pinned memory, and the host does not wait until they are there.

        Example:
            >>> none = torch.empty(0, dtype=torch.int64)
            >>> batch = Batch(
            ...     dense_BF=torch.zeros(2, 3), values=none, lengths_CB=none.int(), num_rows=2)
            >>> batch.to(torch.device("cpu")) is batch, batch.to(torch.device("meta")).values.device
            (True, device(type='meta'))
        """
        if self.dense_BF.device == device:
            return self
        moved: dict[str, Any] = {}
        for field in fields(self):
            tensor = getattr(self, field.name)
            if isinstance(tensor, torch.Tensor):
                pinned = device.type == "cuda" and tensor.device.type == "cpu"
                tensor = tensor.pin_memory() if pinned else tensor
                moved[field.name] = tensor.to(device, non_blocking=pinned)
        return replace(self, **moved)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory until `stream` has done what it was told so far."""
        for field in fields(self):
            tensor = getattr(self, field.name)
            if isinstance(tensor, torch.Tensor):
                tensor.record_stream(stream)
