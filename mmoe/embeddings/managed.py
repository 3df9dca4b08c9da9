"""Embeddings looked up by raw ids: tables whose rows change hands while training goes on."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmoe.config import FeatureSpec
from mmoe.embeddings.backend import EmbeddingBackend, fresh_rows, table_of_state
from mmoe.parallel import Sharded, local_shards, world_size
from mmoe.parallel.sharded_tensors import rows_held

if TYPE_CHECKING:
    from mmoe.embeddings.admission import IdAdmission
    from mmoe.embeddings.lookups import Lookups


class ManagedEmbeddings(EmbeddingBackend):
    """A backend behind the id maps of its managed tables; other tables are passed through.

    While training, every batch's ids are noted, and `step` gives rows away at the end of a window:
    a row with a new owner gets fresh values and zeros in the optimizer's state. In evaluation
    nothing is noted, so a row's score never depends on its batch mates. Where there are several
    ranks, each notes the ids of all, so that everywhere the same ids own the same rows.

    No ids are sent ahead: which row an id has is known when the step before it is over.

    Args:
        backend: Holds the tables; an `EmbeddingBackend`.
        features: In the order of the batches.
        admissions: Of the managed tables, by name.
        seed: Of the fresh values.
        frozen: Tables whose rows keep their owners: no id is admitted, none evicted.
    """

    module: EmbeddingBackend

    def __init__(
        self,
        backend: nn.Module,
        features: Sequence[FeatureSpec],
        admissions: Mapping[str, "IdAdmission"],
        seed: int,
        frozen: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.module = cast(EmbeddingBackend, backend)
        self.frozen = frozenset(frozen)
        self.features, self.seed = list(features), seed
        self.admissions = dict(admissions)
        self.output_dim = self.module.output_dim

    def forward(self, values: Tensor, lengths_CB: Tensor, *others: Tensor | None) -> "Lookups":
        """Returns the backend's lookups; `values` holds raw ids where the table is managed.

        Args:
            values: Int64 [V], one feature's after another's.
            lengths_CB: Ids of each feature in each row.
            *others: Weights of ids, as the backend takes them.
        """
        return self.module(self.rows_of(values, lengths_CB), lengths_CB, *others)

    def rows_of(self, values: Tensor, lengths_CB: Tensor) -> Tensor:
        """Returns rows of the tables, int64 [V]; in training the ids of all ranks are noted.

        Ids are looked up on the CPU, where their owners are, wherever the tables are.

        Args:
            values: Ids, int64 [V], one feature's after another's.
            lengths_CB: Ids of each feature in each row.
        """
        features = len(self.features)
        lengths = lengths_CB.view(features, lengths_CB.numel() // features).sum(dim=1).tolist()
        rows = list(values.cpu().split(lengths))
        managed = [c for c, f in enumerate(self.features) if f.table in self.admissions]
        noted = [c for c in managed if self.features[c].table not in self.frozen]
        ids = [rows[c] for c in noted]
        for c in managed:
            rows[c] = self.admissions[self.features[c].table].rows_of(rows[c])
        if self.training:
            self._note(noted, ids, [rows[c] for c in noted])
        return torch.cat(rows).to(values.device)

    def _note(self, managed: list[int], ids: list[Tensor], rows: list[Tensor]) -> None:
        """Feature by feature, rank after rank: as one process would meet the rows of all ranks."""
        everywhere = gather_ids([*ids, *rows])
        found = zip(everywhere[: len(ids)], everywhere[len(ids) :], strict=True)
        for c, (ids_V, rows_V) in zip(managed, found, strict=True):
            admission = self.admissions[self.features[c].table]
            admission.note(ids_V)
            admission.count(rows_V)

    def step(self) -> None:
        """Applies the gradients, then lets rows change hands: never between lookup and gradient."""
        self.module.step()
        for table, admission in self.admissions.items():
            if table in self.frozen:
                continue
            rows_R = admission.end_step()
            if len(rows_R):
                self._start_afresh(table, rows_R, admission.counters["windows"])

    def table_weights(self) -> dict[str, Tensor]:
        """Returns the tables by name."""
        return self.module.table_weights()

    def optimizer_state(self) -> dict[str, Tensor]:
        """Returns the backend's optimizer state."""
        return self.module.optimizer_state()

    def table_shards(self) -> dict[str, Sharded]:
        """Returns the backend's shards of tables."""
        return self.module.table_shards()

    def optimizer_shards(self) -> dict[str, Sharded]:
        """Returns the backend's shards of optimizer state."""
        return self.module.optimizer_shards()

    def plan_summary(self) -> list[dict[str, Any]]:
        """Returns the backend's plan."""
        return self.module.plan_summary()

    def scale_learning_rates(self, factor: float) -> None:
        """Scales all tables' rates for the next step."""
        self.module.scale_learning_rates(factor)

    def maps(self) -> dict[str, Tensor]:
        """Returns `TABLE.TENSOR`: who owns which row (not copies), which scoring needs."""
        return {
            f"{table}.{name}": tensor
            for table, admission in self.admissions.items()
            for name, tensor in admission.map().items()
        }

    def progress(self) -> dict[str, Tensor]:
        """Returns `TABLE.TENSOR`: what training needs beside `maps` to go on to the bit."""
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
        """Takes owners as another run's `maps` and `progress` have them, where it has the table.

        Args:
            maps: Owners of rows, by `TABLE.NAME`.
            progress: Counts towards admission and eviction, by the same names.

        Returns:
            The names of those tables; the owners of others are as they were.
        """
        known = [name for name in self.admissions if _of_table(name, maps)]
        for name in known:
            self.admissions[name].continue_from(_of_table(name, maps), _of_table(name, progress))
        return known

    def summary(self) -> dict[str, dict[str, int | float | None]]:
        """Returns by table: rows, in_use, evicted, and the unseen share of this epoch's lookups."""
        return {table: admission.summary() for table, admission in self.admissions.items()}

    def restart_counts(self) -> None:
        """Begins to count lookups at 0, for a new epoch."""
        for admission in self.admissions.values():
            admission.restart_counts()

    @torch.no_grad()
    def _start_afresh(self, table: str, rows_R: Tensor, window: int) -> None:
        for shard, own_S, chosen_S in rows_held(local_shards(self.table_shards()[table]), rows_R):
            fresh_RD = fresh_rows(len(rows_R), shard.shape, f"{self.seed} {table} {window}")
            shard.tensor[own_S.to(shard.tensor.device)] = fresh_RD[chosen_S, shard.region[1]].to(
                shard.tensor
            )
        for name, state in self.optimizer_shards().items():
            if table_of_state(name) == table:
                for shard, own_S, _ in rows_held(local_shards(state), rows_R):
                    shard.tensor[own_S.to(shard.tensor.device)] = 0


def _of_table(table: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{table}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def gather_ids(ids: Sequence[Tensor]) -> list[Tensor]:
    """Gathers the ids of all ranks: each feature's as with all of them, rank after rank.

    All ranks call it together, each with as many tensors, of any length.

    Args:
        ids: int64 [V] each, on one device.

    Returns:
        As many, int64 [ΣV]; the same on every rank. One process gets its own back.
    """
    ranks = world_size()
    if ranks == 1 or not ids:
        return list(ids)
    own_P = torch.tensor([len(one) for one in ids], device=ids[0].device)
    sizes_WP = [torch.empty_like(own_P) for _ in range(ranks)]
    dist.all_gather(sizes_WP, own_P)
    sizes = [sizes_P.tolist() for sizes_P in sizes_WP]
    # Gloo gathers tensors of one length only
    own_L = own_P.new_zeros(max(map(sum, sizes)))
    own_L[: int(own_P.sum())] = torch.cat(list(ids))
    received_WL = [torch.empty_like(own_L) for _ in range(ranks)]
    dist.all_gather(received_WL, own_L)
    by_rank = [
        got_L[: sum(counts)].split(counts) for got_L, counts in zip(received_WL, sizes, strict=True)
    ]
    return [torch.cat(of_ranks) for of_ranks in zip(*by_rank, strict=True)]
