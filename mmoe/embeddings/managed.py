"""Embeddings looked up by raw ids: tables whose rows change hands while training goes on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from mmoe.config import FeatureSpec
from mmoe.embeddings.initial import fresh_rows
from mmoe.embeddings.names import table_of_state

if TYPE_CHECKING:
    from mmoe.embeddings.admission import IdAdmission
    from mmoe.embeddings.build import EmbeddingBackend


class ManagedEmbeddings(nn.Module):
    """A backend behind the id maps of its managed tables; other tables are passed through.

    While training, every batch's ids are noted, and `step` gives rows away at the end of a window:
    a row with a new owner gets fresh values and zeros in the optimizer's state. In evaluation
    nothing is noted, so a row's score never depends on its batch mates.

    Args:
        backend: Holds the tables; an `EmbeddingBackend`.
        features: In the order of the batches.
        admissions: Of the managed tables, by name.
        seed: Of the fresh values.
    """

    def __init__(
        self,
        backend: nn.Module,
        features: Sequence[FeatureSpec],
        admissions: Mapping[str, "IdAdmission"],
        seed: int,
    ) -> None:
        super().__init__()
        self.module = backend
        self.features, self.seed = list(features), seed
        self.admissions = dict(admissions)
        self.output_dim = self._backend.output_dim

    def forward(self, values: Tensor, lengths_CB: Tensor, *others: Tensor | None) -> Tensor:
        """See `EmbeddingBackend`; `values` holds raw ids where the table is managed."""
        return self.module(self.rows_of(values, lengths_CB), lengths_CB, *others)

    def rows_of(self, values: Tensor, lengths_CB: Tensor) -> Tensor:
        """Rows of the tables, int64 [V]; in training the ids are noted.

        Ids are looked up on the CPU, where their owners are, wherever the tables are.
        """
        lengths = lengths_CB.view(len(self.features), -1).sum(dim=1).tolist()
        parts = list(values.cpu().split(lengths))
        for c, feature in enumerate(self.features):
            admission = self.admissions.get(feature.table)
            if admission is None:
                continue
            ids_V, parts[c] = parts[c], admission.rows_of(parts[c])
            if self.training:
                admission.note(ids_V)
                admission.count(parts[c])
        return torch.cat(parts).to(values.device)

    def step(self) -> None:
        """Applies the gradients, then lets rows change hands: never between lookup and gradient."""
        self._backend.step()
        for table, admission in self.admissions.items():
            rows_R = admission.end_step()
            if len(rows_R):
                self._start_afresh(table, rows_R, admission.counters["windows"])

    def table_weights(self) -> dict[str, Tensor]:
        """The tables by name."""
        return self._backend.table_weights()

    def optimizer_state(self) -> dict[str, Tensor]:
        """The backend's."""
        return self._backend.optimizer_state()

    def scale_learning_rates(self, factor: float) -> None:
        """For the next step."""
        self._backend.scale_learning_rates(factor)

    def maps(self) -> dict[str, Tensor]:
        """`TABLE.TENSOR`: who owns which row (not copies); scoring needs them beside the tables."""
        return {
            f"{table}.{name}": tensor
            for table, admission in self.admissions.items()
            for name, tensor in admission.map().items()
        }

    def progress(self) -> dict[str, Tensor]:
        """`TABLE.TENSOR`: what training needs beside `maps` to go on to the bit."""
        return {
            f"{table}.{name}": tensor
            for table, admission in self.admissions.items()
            for name, tensor in admission.progress().items()
        }

    def load_progress(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `progress` gave.

        Raises:
            ValueError: A tensor is missing or has another shape.
        """
        for table, admission in self.admissions.items():
            admission.load_progress(_of_table(table, tensors))

    def continue_from(
        self, maps: Mapping[str, Tensor], progress: Mapping[str, Tensor]
    ) -> list[str]:
        """Owners as another run's `maps` and `progress` have them, where it has the table.

        Returns:
            The names of those tables; the owners of others are as they were.
        """
        known = [name for name in self.admissions if _of_table(name, maps)]
        for name in known:
            self.admissions[name].continue_from(_of_table(name, maps), _of_table(name, progress))
        return known

    def summary(self) -> dict[str, dict[str, int | float | None]]:
        """By table: rows, in_use, evicted, and the unseen share of this epoch's lookups."""
        return {table: admission.summary() for table, admission in self.admissions.items()}

    def restart_counts(self) -> None:
        """A new epoch begins."""
        for admission in self.admissions.values():
            admission.restart_counts()

    @property
    def _backend(self) -> "EmbeddingBackend":
        return cast("EmbeddingBackend", self.module)

    @torch.no_grad()
    def _start_afresh(self, table: str, rows_R: Tensor, window: int) -> None:
        weight = self.table_weights()[table]
        fresh = fresh_rows(len(rows_R), weight, f"{self.seed} {table} {window}")
        rows_R = rows_R.to(weight.device)
        weight[rows_R] = fresh.to(weight.device)
        for name, state in self.optimizer_state().items():
            if table_of_state(name) == table and state.dim() and len(state) == len(weight):
                state[rows_R] = 0


def managed_ids(embeddings: object) -> ManagedEmbeddings | None:
    """The embeddings, where one of their tables is managed."""
    return embeddings if isinstance(embeddings, ManagedEmbeddings) else None


def _of_table(table: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{table}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
