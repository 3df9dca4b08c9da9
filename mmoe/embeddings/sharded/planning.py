"""Planning of tables over ranks: TorchRec's planner, and what it is allowed to do."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.types import ParameterSharding, ShardingPlan, ShardingType

from mmoe.config import EmbeddingOptimizerConfig, ParallelConfig, TablePlacement, TableSpec
from mmoe.embeddings.backend import module_name
from mmoe.embeddings.sharded.sharder import SHARDINGS_OF_EVENTS
from mmoe.parallel.launch.launcher import local_ranks
from mmoe.terminal import byte_size

SHARDINGS = {
    "table_wise": ShardingType.TABLE_WISE,
    "row_wise": ShardingType.ROW_WISE,
    "column_wise": ShardingType.COLUMN_WISE,
    "table_column_wise": ShardingType.TABLE_COLUMN_WISE,
    "table_row_wise": ShardingType.TABLE_ROW_WISE,
    "grid": ShardingType.GRID_SHARD,
    "data_parallel": ShardingType.DATA_PARALLEL,
}
BY_COLUMNS = ("column_wise", "table_column_wise", "grid")
BY_ROWS = ("row_wise", "table_row_wise", "grid")
# To row_wise and column_wise
_EQUAL_ON_ONE_MACHINE = ("table_row_wise", "table_column_wise", "grid")
KERNELS = {
    "fused": EmbeddingComputeKernel.FUSED,
    "uvm": EmbeddingComputeKernel.FUSED_UVM,
    "uvm_caching": EmbeddingComputeKernel.FUSED_UVM_CACHING,
}
# Numbers that the optimizer keeps, for a row and for each number of it; 4 bytes each
_STATE = {"rowwise_adagrad": (1, 0), "adagrad": (0, 1), "sgd": (0, 0), "adam": (0, 2)}
_WIDTH = {"fp32": 4, "fp16": 2}


@dataclass(frozen=True)
class World:
    """Ranks and their memory, as the planner sees them.

    Attributes:
        ranks: How many.
        local_ranks: How many share a machine.
        memory: Bytes that the tables of one rank may take.
        device: cpu or cuda.
    """

    ranks: int
    local_ranks: int
    memory: int
    device: str

    @classmethod
    def of_this_process(cls, parallel: ParallelConfig, device: torch.device) -> "World":
        """Describes the ranks, all of which call it; the least memory of one counts for all."""
        ranks = dist.get_world_size()
        local = _local_ranks(ranks)
        asked = parallel.memory_gib
        memory = int(asked * 2**30) if asked is not None else _memory(device, local)
        least = torch.tensor(memory, device=device)
        if ranks > 1:
            dist.all_reduce(least, dist.ReduceOp.MIN)
        return cls(ranks, local, int(least), device.type)


@dataclass(frozen=True)
class TablePlanner:
    """Plans which rank holds which rows and columns of the tables.

    Attributes:
        tables: Rows and widths.
        optimizer: Whose state takes memory too.
        parallel: What the config asks for.
        world: Ranks and their memory.
        of_events: Names of tables whose rows stay events, which fewer shardings fit.
    """

    tables: Sequence[TableSpec]
    optimizer: EmbeddingOptimizerConfig
    parallel: ParallelConfig
    world: World
    of_events: Collection[str] = ()

    def plan(self, collection: nn.Module, sharders: list[Any]) -> ShardingPlan:
        """Plans TorchRec's collection, which has no memory yet; the same plan on every rank.

        Args:
            collection: TorchRec's, without memory.
            sharders: Of its modules.

        Raises:
            ValueError: On every rank alike: a table's placement cannot be had, or the ranks have
                not the memory.
        """
        self._check_events()
        choices = [self._placements(whole) for whole in (True, False)]
        # The first rank plans for all, and says so where it cannot: the others would wait for ever
        found: list[ShardingPlan | str | None] = [None]
        if dist.get_rank() == 0:
            found[0] = self._first_plan(collection, sharders, choices) or self._too_large()
        if self.world.ranks > 1:
            dist.broadcast_object_list(found, src=0)
        plan = found[0]
        if isinstance(plan, str):
            raise ValueError(plan)
        assert isinstance(plan, ShardingPlan)
        return plan

    def rows(self, plan: Mapping[str, ParameterSharding]) -> list[dict[str, Any]]:
        """Lists a plan for JSON, one entry a table; see `EmbeddingBackend.plan_summary`.

        Args:
            plan: How each table is sharded, by its module's name.
        """
        found = []
        for table in self.tables:
            how = plan[module_name(table.name)]
            entry = {
                "table": table.name,
                "rows": table.num_rows,
                "dim": table.dim,
                "sharding": _word(SHARDINGS, how.sharding_type),
                "kernel": _word(KERNELS, how.compute_kernel),
                "precision": self.parallel.placement(table.name).precision,
                "pieces": self._pieces(table, how),
            }
            found.append(entry)
        return found

    def _pieces(self, table: TableSpec, how: ParameterSharding) -> list[dict[str, Any]]:
        spec: Any = how.sharding_spec
        if spec is None:  # a copy on every rank
            whole = (0, 0), (table.num_rows, table.dim)
            regions = [(rank, *whole) for rank in range(self.world.ranks)]
        else:
            regions = [(s.placement.rank(), s.shard_offsets, s.shard_sizes) for s in spec.shards]
        return [
            {
                "rank": rank,
                "rows": [first[0], first[0] + size[0]],
                "columns": [first[1], first[1] + size[1]],
                "bytes": self._bytes(table, *size),
            }
            for rank, first, size in regions
            if size[0]
        ]

    def _first_plan(
        self,
        collection: nn.Module,
        sharders: list[Any],
        choices: Sequence[dict[str, ParameterConstraints]],
    ) -> ShardingPlan | None:
        on_cpu, memory = self.world.device == "cpu", self.world.memory
        for constraints in choices:
            planner = EmbeddingShardingPlanner(
                topology=Topology(
                    world_size=self.world.ranks,
                    local_world_size=self.world.local_ranks,
                    compute_device=self.world.device,
                    ddr_cap=memory if on_cpu else None,
                    hbm_cap=None if on_cpu else memory,
                ),
                storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
                constraints=constraints,
            )
            try:
                return planner.plan(collection, sharders)
            except PlannerError:
                continue
        return None

    def _placements(self, whole: bool) -> dict[str, ParameterConstraints]:
        """Returns the planner's choices, by table.

        With `whole`, `auto` on the CPU means table_wise for a table that is no more than a rank's
        share of all. TorchRec estimates for GPUs, and cuts the smallest tables by rows; over gloo
        that sends twice the bytes, as every rank has a part of each sum (on two ranks with 20
        tables 9.7 instead of 4.7 ms a step).
        """
        sizes = {table.name: self._need(table)[0] for table in self.tables}
        share = sum(sizes.values()) / self.world.ranks
        whole = whole and self.world.device == "cpu"
        return {
            module_name(table.name): self._constraints(table, whole and sizes[table.name] <= share)
            for table in self.tables
        }

    def _constraints(self, table: TableSpec, whole: bool) -> ParameterConstraints:
        placement, on_cpu = self.parallel.placement(table.name), self.world.device == "cpu"
        kernel = placement.kernel or "auto"
        if kernel in ("uvm", "uvm_caching") and on_cpu:
            raise ValueError(
                f"table {table.name!r}: parallel says kernel {kernel}, which keeps rows in the "
                "memory of the machine for a GPU, but this run is on the CPU; say kernel: fused"
            )
        shardings = self._allowed(table)
        if table.name in self.of_events:  # of all tables another may have been asked for
            shardings = [n for n in shardings if n in SHARDINGS_OF_EVENTS] or ["table_wise"]
        if whole and self._sharding(table) == "auto":
            shardings = ["table_wise"]
        kernels = [KERNELS[name].value for name in (KERNELS if kernel == "auto" else [kernel])]
        if on_cpu or (self.world.ranks == 1 and kernel == "auto"):
            kernels = [EmbeddingComputeKernel.FUSED.value]
        if shardings == ["data_parallel"]:
            kernels = [EmbeddingComputeKernel.DENSE.value]
        return ParameterConstraints(
            sharding_types=[SHARDINGS[name].value for name in shardings],
            compute_kernels=kernels,
            min_partition=placement.columns or _even_columns(table.dim, self.world.ranks),
            stochastic_rounding=False,  # the same seed has to give the same rows
        )

    def _check_events(self) -> None:
        for name in sorted(self.of_events):
            asked = self._own_sharding(name)
            if asked not in (None, "auto", *SHARDINGS_OF_EVENTS):
                raise ValueError(
                    f"table {name!r}: parallel says sharding {asked}, but a sequence reads its "
                    f"rows one by one; say {', '.join(SHARDINGS_OF_EVENTS)} or auto"
                )

    def _allowed(self, table: TableSpec) -> list[str]:
        """Shardings among which the planner may choose."""
        if self.world.ranks == 1:
            return ["table_wise"]
        asked = self._sharding(table)
        too_few = [name for name in BY_ROWS if not _fills(table.num_rows, self._cuts(name))]
        if asked == "auto":
            # The planner takes either of equals: one config would not always be one plan
            one_machine = self.world.local_ranks == self.world.ranks
            equal = _EQUAL_ON_ONE_MACHINE if one_machine else ()
            by_columns = self.optimizer.kind != "rowwise_adagrad" or table.frozen
            # Copies of small tables train the same, but by a second, unfused optimizer
            return [
                name
                for name in SHARDINGS
                if name not in ("data_parallel", *equal, *too_few)
                and (by_columns or name not in BY_COLUMNS)
            ]
        self._check_optimizer(table, asked)
        if asked not in too_few:
            return [asked]
        if asked == self._own_sharding(table.name):
            raise ValueError(
                f"table {table.name!r}: parallel says sharding {asked}, but its {table.num_rows} "
                f"rows are too few to give all of {self._cuts(asked)} ranks some; say sharding: "
                "table_wise"
            )
        return ["table_wise"]  # what all tables are asked for is not for the smallest

    def _cuts(self, sharding: str) -> int:
        return self.world.ranks if sharding == "row_wise" else self.world.local_ranks

    def _own_sharding(self, table: str) -> str | None:
        """What the config asks for this table alone."""
        return self.parallel.per_table.get(table, TablePlacement()).sharding

    def _sharding(self, table: TableSpec) -> str:
        """Returns the config's sharding; auto of a table that decays is data_parallel."""
        asked = self.parallel.placement(table.name).sharding or "auto"
        return "data_parallel" if asked == "auto" and self._has_copies(table) else asked

    def _has_copies(self, table: TableSpec) -> bool:
        return table.decays and self.optimizer.needs_copies

    def _check_optimizer(self, table: TableSpec, sharding: str) -> None:
        start = f"table {table.name!r}: parallel says sharding {sharding}, but "
        if sharding != "data_parallel" and self._has_copies(table):
            raise ValueError(
                start + "embedding_optimizer.weight_decay needs a copy on every rank; say "
                "sharding: data_parallel (or auto), or set "
                "training.embedding_optimizer.weight_decay: 0"
            )
        kind = self.optimizer.kind
        if sharding in BY_COLUMNS and kind == "rowwise_adagrad" and not table.frozen:
            raise ValueError(
                start + "rowwise_adagrad has one number for a whole row, and the parts of a row "
                "would each have their own, which is another optimizer; say sharding: row_wise, "
                "or training.embedding_optimizer.kind: adagrad"
            )
        if sharding == "data_parallel" and kind == "adam":
            raise ValueError(
                start + "copies of a table are trained by rowwise_adagrad, adagrad or sgd alone; "
                "say sharding: table_wise, or another training.embedding_optimizer.kind"
            )

    def _too_large(self) -> str:
        """Says how much memory is missing, in all ranks together or on the largest shard's."""
        needs = {table.name: self._need(table) for table in self.tables}
        ranks, memory = self.world.ranks, self.world.memory
        total = sum(all_bytes for all_bytes, _ in needs.values())
        who = "the one rank" if ranks == 1 else f"each of {ranks} ranks"
        have = f"{who} may use {byte_size(memory)} (parallel.memory_gib)"
        missing = total - ranks * memory
        mend = "lower rows, hash_size or dim of tables, or start more ranks"
        if self.parallel.memory_gib is not None:
            mend = f"raise parallel.memory_gib, {mend}"
        need = f"the embedding tables need {byte_size(total)} with their optimizer's state"
        if missing > 0:
            largest = max(needs, key=lambda name: needs[name][0])
            return (
                f"{need}, and {have}: {byte_size(missing)} are missing; the largest table is "
                f"{largest!r} ({byte_size(needs[largest][0])}): {mend}"
            )
        widest = max(needs, key=lambda name: needs[name][1])
        shard = needs[widest][1]
        if shard > memory:
            sharding = self.parallel.placement(widest).sharding
            return (
                f"table {widest!r} with sharding {sharding} puts {byte_size(shard)} on one rank, "
                f"and {have}: {byte_size(shard - memory)} are missing there; say sharding: "
                f"row_wise, or {mend}"
            )
        return (
            f"{need}; {have}, but no division found leaves room for what a batch looks up as well; "
            f"the largest piece is one of {widest!r} ({byte_size(shard)}): say sharding: row_wise "
            f"for large tables, or {mend}"
        )

    def _need(self, table: TableSpec) -> tuple[int, int]:
        """Bytes of a table on all ranks together, and of its largest shard."""
        whole = self._bytes(table, table.num_rows, table.dim)
        ranks, local_ranks = self.world.ranks, self.world.local_ranks
        columns = self.parallel.placement(table.name).columns or _even_columns(table.dim, ranks)
        by_columns = table.dim // columns
        divisors: Mapping[str, int] = {
            "row_wise": ranks,
            "table_row_wise": local_ranks,
            "column_wise": by_columns,
            "table_column_wise": by_columns,
            "grid": local_ranks * by_columns,
            "auto": ranks,
        }
        sharding = self._sharding(table)
        copies = ranks if sharding == "data_parallel" else 1
        return whole * copies, -(-whole // divisors.get(sharding, 1))

    def _bytes(self, table: TableSpec, rows: int, columns: int) -> int:
        precision = self.parallel.placement(table.name).precision or "fp32"
        return shard_bytes(rows, columns, self.optimizer, precision, table.frozen)


def shard_bytes(
    rows: int,
    columns: int,
    optimizer: EmbeddingOptimizerConfig,
    precision: str,
    frozen: bool = False,
) -> int:
    """Returns the bytes of a shard of a table, with the optimizer's state; frozen ones have none.

    Example:
        >>> shard_bytes(1000, 16, EmbeddingOptimizerConfig(kind="rowwise_adagrad"), "fp32")
        68000
    """
    by_row, by_number = (0, 0) if frozen else _STATE[optimizer.kind]
    return rows * (columns * (_WIDTH[precision] + 4 * by_number) + 4 * by_row)


def _fills(rows: int, ranks: int) -> bool:
    """Returns whether every rank gets rows, as FBGEMM wants, where each takes as many, rounded up.

    Example:
        >>> _fills(10, 4), _fills(9, 4)  # 3 + 3 + 3 + 1 and 3 + 3 + 3 + 0
        (True, False)
    """
    return -(-rows // ranks) * (ranks - 1) < rows


def _even_columns(dim: int, ranks: int) -> int:
    """The widest shard that divides the columns over all ranks, or else the narrowest there is.

    Example:
        >>> _even_columns(64, 4), _even_columns(12, 2), _even_columns(8, 4)
        (16, 4, 4)
    """
    widths = [width for width in range(4, dim + 1, 4) if dim % width == 0]
    return max((width for width in widths if dim // width >= ranks), default=4)


def _local_ranks(ranks: int) -> int:
    """Ranks on this machine, as TorchRec counts them: what torchrun says, or all."""
    local = local_ranks(ranks)
    return local if 0 < local <= ranks and ranks % local == 0 else ranks


def _memory(device: torch.device, sharing: int) -> int:
    """Bytes of a GPU, or of this rank's part of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // sharing
    except (ValueError, OSError, AttributeError):  # neither Linux nor macOS
        return 128 * 2**30 // sharing  # what TorchRec assumes


def _word(words: Mapping[str, Any], value: str) -> str:
    return next((word for word, known in words.items() if known.value == value), value)
