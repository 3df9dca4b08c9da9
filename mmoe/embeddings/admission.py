"""Admission of ids to the rows of a table, learnt while training: managed collisions."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torchrec import JaggedTensor
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    MCHManagedCollisionModule,
)

from mmoe.config import ManagedIds

# As mmoe.datasets.features.id_map numbers them: 0 is missing; owned rows and raw ids begin at 2
_UNSEEN, _FIRST = 1, 2

_POLICIES = {
    "lfu": LFU_EvictionPolicy,
    "lru": LRU_EvictionPolicy,
    "distance_lfu": DistanceLFU_EvictionPolicy,
}
# Of TorchRec's state: what a lookup needs, and what decides who comes and goes next
_MAP = ("_mch_sorted_raw_ids", "_mch_remapped_ids_mapping")
_RANKS = ("_mch_counts", "_mch_last_access_iter", "_current_iter_tensor")
_NOBODY = torch.iinfo(torch.int64).max  # TorchRec's id of a free row
_COUNTERS = ("steps", "learnt_at", "windows", "evicted", "lookups", "unseen")


class IdAdmission:
    """Owners of one table's rows: which id has which, who is admitted, who is evicted.

    Training notes every batch's ids; steps are gathered into windows of `evict_every` (the first
    ones are shorter and end after steps 1, 2, 4, 8, …, so that an empty table fills at once). At
    the end of a window its ids, most frequent first, get free rows, then the rows of ids that the
    policy ranks lower than them. Ages are counted in windows. Lookups only read.

    TorchRec's module could gather the history itself, but it keeps it outside its state, cuts what
    is longer than its first batch promised, and its `threshold_filtering_func` would take rare
    owners for newcomers. So it is handed one finished window at a time.

    Args:
        name: Of the table.
        rules: Rows, admission and eviction.

    Example:
        >>> ids = IdAdmission("item", ManagedIds(rows=2, admit_after=2, evict="lru"))
        >>> ids.note(torch.tensor([50, 60, 50]))
        >>> ids.end_step().tolist()  # rows that have a new owner
        [3]
        >>> ids.rows_of(torch.tensor([60, 50, 0])).tolist()
        [1, 3, 0]

    Source: TorchRec, `torchrec.modules.mc_modules` ("zero collision hash").
    """

    def __init__(self, name: str, rules: ManagedIds) -> None:
        self.name, self.rules = name, rules
        self.collisions = MCHManagedCollisionModule(
            zch_size=rules.rows + 1,  # its last row is that of ids without one: our row 1
            device=torch.device("cpu"),
            eviction_policy=_POLICIES[rules.evict](),
            eviction_interval=1,
            output_global_offset=_FIRST,
        )
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.waiting = torch.empty(0, dtype=torch.int64)
        self._window: list[Tensor] = []

    def rows_of(self, ids_V: Tensor) -> Tensor:
        """Returns the row of each raw id: its own, 1 for those without one, 0 for missing.

        Args:
            ids_V: int64, as `mmoe.datasets` encodes them.

        Returns:
            int64 [V], below rows + 2.
        """
        found_V = self.collisions.remap({self.name: _jagged(ids_V)})[self.name].values()
        found_V = found_V.masked_fill(found_V == _FIRST + self.rules.rows, _UNSEEN)
        return torch.where(ids_V < _FIRST, ids_V, found_V)

    def note(self, ids_V: Tensor) -> None:
        """Notes the ids of a training batch; they count when the window ends."""
        self._window.append(ids_V[ids_V >= _FIRST])

    def count(self, rows_V: Tensor) -> None:
        """Counts rows that a training batch looked up, for `summary`."""
        self.counters["lookups"] += int((rows_V > 0).sum())
        self.counters["unseen"] += int((rows_V == _UNSEEN).sum())

    def end_step(self) -> Tensor:
        """Ends the window where it is time.

        Returns:
            int64, ascending: the rows that have a new owner now; they have to start afresh.
        """
        self.counters["steps"] += 1
        steps, learnt_at = self.counters["steps"], self.counters["learnt_at"]
        if steps - learnt_at < min(self.rules.evict_every, max(learnt_at, 1)):
            return torch.empty(0, dtype=torch.int64)
        self.counters["learnt_at"] = steps
        self.counters["windows"] += 1
        return self._learn()

    def summary(self) -> dict[str, int | float | None]:
        """Rows and how many are owned, rows taken from their owner so far, and the share of
        lookups since `restart_counts` that found no row (missing ids do not count)."""
        rows, lookups = self.rules.rows, self.counters["lookups"]
        return {
            "rows": rows,
            "in_use": rows - self._free_rows(),
            "evicted": self.counters["evicted"],
            "unseen": self.counters["unseen"] / lookups if lookups else None,
        }

    def restart_counts(self) -> None:
        """Begins to count lookups at 0, for a new epoch."""
        self.counters |= {"lookups": 0, "unseen": 0}

    def map(self) -> dict[str, Tensor]:
        """Returns the owners (not a copy): all that lookups need."""
        state = self.collisions.state_dict()
        return {name: state[name] for name in _MAP}

    def progress(self) -> dict[str, Tensor]:
        """Returns what training needs beside `map` to go on to the bit."""
        counters = {name: torch.tensor(value) for name, value in self.counters.items()}
        window = torch.cat([self.waiting[:0], *self._window])
        return {**self._ranks(), **counters, "waiting": self.waiting, "window": window}

    def load_progress(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `progress` gave.

        Raises:
            ValueError: A tensor is missing or has another shape.
        """
        ranks = self._ranks()
        for name, mine in self.progress().items():
            if name not in tensors or (name in ranks and tensors[name].shape != mine.shape):
                raise ValueError(
                    f"table {self.name!r}: the checkpoint has no fitting tensor {name!r}; "
                    "the config was changed after training"
                )
        for name, rank in ranks.items():
            rank.copy_(tensors[name])
        self.counters = {name: int(tensors[name]) for name in _COUNTERS}
        self.waiting = tensors["waiting"]
        self._window = [tensors["window"]]

    def continue_from(self, owners: Mapping[str, Tensor], progress: Mapping[str, Tensor]) -> None:
        """Takes over another run's `map` and `progress`, for as many rows.

        Where its policy did not keep what this one ranks by, every owner counts as seen once, in
        the last window. Windows are short again at first, so that a short day gives rows to its
        new ids.
        """
        owned_R = (owners["_mch_sorted_raw_ids"] != _NOBODY).long()
        assumed = {"_mch_counts": 1, "_mch_last_access_iter": int(progress["_current_iter_tensor"])}
        for name, mine in self.map().items():
            mine.copy_(owners[name])
        ranks = {
            name: progress[name] if name in progress else owned_R * assumed[name]
            for name in self._ranks()
        }
        self.load_progress({**progress, **ranks})
        self.counters |= {"evicted": 0, "steps": 0, "learnt_at": 0}  # of this run

    def _ranks(self) -> dict[str, Tensor]:
        """Returns how often and when owners were seen (not a copy)."""
        state = self.collisions.state_dict()
        return {name: state[name] for name in _RANKS if name in state}

    def _learn(self) -> Tensor:
        ids_V, self.waiting = self._admitted(torch.cat([self.waiting, *self._window]))
        self._window.clear()
        module, free = self.collisions, self._free_rows()
        module._current_iter = -1  # read it from the state, which may come from a checkpoint
        module._input_history_buffer_size = -1  # as long as this window, not as the first one
        module.profile({self.name: _jagged(ids_V)})
        given = module.evict()
        assert given is not None, "a window ends with every call"
        self.counters["evicted"] += len(given) - (free - self._free_rows())
        return given.sort().values

    def _admitted(self, ids_V: Tensor) -> tuple[Tensor, Tensor]:
        """Ids that have a row or may have one, and the newest of those that have to wait."""
        if self.rules.admit_after == 1:
            return ids_V, ids_V[:0]
        distinct, inverse_V, counts = ids_V.unique(return_inverse=True, return_counts=True)
        welcome = (counts >= self.rules.admit_after) | (self.rows_of(distinct) >= _FIRST)
        welcome_V = welcome[inverse_V]
        return ids_V[welcome_V], ids_V[~welcome_V][-self.rules.rows :]

    def _free_rows(self) -> int:
        return int(self.collisions.open_slots())


def _jagged(ids_V: Tensor) -> JaggedTensor:
    return JaggedTensor(values=ids_V, lengths=torch.tensor([len(ids_V)]))
