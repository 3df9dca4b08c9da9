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


def plan_tables(
    collection: nn.Module,
    sharders: list[Any],
    tables: Sequence[TableSpec],
    optimizer: EmbeddingOptimizerConfig,
    parallel: ParallelConfig,
    world: World,
    of_events: Collection[str] = (),
) -> ShardingPlan:
    """Plans which rank holds which rows and columns; the same plan on every rank.

    Args:
        collection: TorchRec's, without memory.
        sharders: Of its modules.
        tables: Rows and widths.
        optimizer: Whose state takes memory too.
        parallel: What the config asks for.
        world: Ranks and their memory.
        of_events: Names of tables whose rows stay events, which fewer shardings fit.

    Raises:
        ValueError: On every rank alike: a table's placement cannot be had, or the ranks have not
            the memory.
    """
    _check_events(of_events, parallel)
    choices = [
        _placements(tables, optimizer, parallel, world, whole, of_events) for whole in (True, False)
    ]
    # The first rank plans for all, and says so where it cannot: the others would wait for ever
    found: list[ShardingPlan | str | None] = [None]
    if dist.get_rank() == 0:
        found[0] = _first_plan(collection, sharders, choices, world)
        found[0] = found[0] or _too_large(tables, optimizer, parallel, world)
    if world.ranks > 1:
        dist.broadcast_object_list(found, src=0)
    plan = found[0]
    if isinstance(plan, str):
        raise ValueError(plan)
    assert isinstance(plan, ShardingPlan)
    return plan


def _first_plan(
    collection: nn.Module,
    sharders: list[Any],
    choices: Sequence[dict[str, ParameterConstraints]],
    world: World,
) -> ShardingPlan | None:
    for constraints in choices:
        planner = EmbeddingShardingPlanner(
            topology=Topology(
                world_size=world.ranks,
                local_world_size=world.local_ranks,
                compute_device=world.device,
                ddr_cap=world.memory if world.device == "cpu" else None,
                hbm_cap=world.memory if world.device != "cpu" else None,
            ),
            storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
            constraints=constraints,
        )
        try:
            return planner.plan(collection, sharders)
        except PlannerError:
            continue
    return None


def _placements(
    tables: Sequence[TableSpec],
    optimizer: EmbeddingOptimizerConfig,
    parallel: ParallelConfig,
    world: World,
    whole: bool,
    of_events: Collection[str],
) -> dict[str, ParameterConstraints]:
    """Returns the planner's choices, by table.

    With `whole`, `auto` on the CPU means table_wise for a table that is no more than a rank's share
    of all. TorchRec estimates for GPUs, and cuts the smallest tables by rows; over gloo that sends
    twice the bytes, as every rank has a part of each sum (on two ranks with 20 tables 9.7 instead
    of 4.7 ms a step).
    """
    sizes = {t.name: _need(t, optimizer, parallel, world)[0] for t in tables}
    share = sum(sizes.values()) / world.ranks
    return {
        module_name(table.name): _constraints(
            table,
            optimizer,
            parallel,
            world,
            whole=whole and world.device == "cpu" and sizes[table.name] <= share,
            of_events=table.name in of_events,
        )
        for table in tables
    }


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


def _constraints(
    table: TableSpec,
    optimizer: EmbeddingOptimizerConfig,
    parallel: ParallelConfig,
    world: World,
    *,
    whole: bool,
    of_events: bool,
) -> ParameterConstraints:
    placement = parallel.placement(table.name)
    kernel = placement.kernel or "auto"
    if kernel in ("uvm", "uvm_caching") and world.device == "cpu":
        raise ValueError(
            f"table {table.name!r}: parallel says kernel {kernel}, which keeps rows in the memory "
            "of the machine for a GPU, but this run is on the CPU; say kernel: fused"
        )
    shardings = _allowed(table, parallel, optimizer, world)
    if of_events:  # of all tables another may have been asked for
        shardings = [name for name in shardings if name in SHARDINGS_OF_EVENTS] or ["table_wise"]
    if whole and _sharding(table, parallel, optimizer) == "auto":
        shardings = ["table_wise"]
    kernels = [KERNELS[name].value for name in (KERNELS if kernel == "auto" else [kernel])]
    if world.device == "cpu" or (world.ranks == 1 and kernel == "auto"):
        kernels = [EmbeddingComputeKernel.FUSED.value]
    if shardings == ["data_parallel"]:
        kernels = [EmbeddingComputeKernel.DENSE.value]
    return ParameterConstraints(
        sharding_types=[SHARDINGS[name].value for name in shardings],
        compute_kernels=kernels,
        min_partition=placement.columns or _even_columns(table.dim, world.ranks),
        stochastic_rounding=False,  # the same seed has to give the same rows
    )


def _check_events(of_events: Collection[str], parallel: ParallelConfig) -> None:
    for name in sorted(of_events):
        asked = parallel.per_table.get(name, TablePlacement()).sharding
        if asked not in (None, "auto", *SHARDINGS_OF_EVENTS):
            raise ValueError(
                f"table {name!r}: parallel says sharding {asked}, but a sequence reads its rows "
                f"one by one; say {', '.join(SHARDINGS_OF_EVENTS)} or auto"
            )


def _allowed(
    table: TableSpec, parallel: ParallelConfig, optimizer: EmbeddingOptimizerConfig, world: World
) -> list[str]:
    """Shardings among which the planner may choose."""
    if world.ranks == 1:
        return ["table_wise"]
    asked = _sharding(table, parallel, optimizer)
    too_few = [name for name in BY_ROWS if not _fills(table.num_rows, _cuts(name, world))]
    if asked == "auto":
        # The planner takes either of equals: the same config would not always be the same plan
        equal = _EQUAL_ON_ONE_MACHINE if world.local_ranks == world.ranks else ()
        by_columns = optimizer.kind != "rowwise_adagrad" or table.frozen
        # Copies of small tables train the same, but by a second, unfused optimizer
        return [
            name
            for name in SHARDINGS
            if name not in ("data_parallel", *equal, *too_few)
            and (by_columns or name not in BY_COLUMNS)
        ]
    _check_optimizer(table, asked, optimizer)
    if asked not in too_few:
        return [asked]
    if asked == parallel.per_table.get(table.name, TablePlacement()).sharding:
        raise ValueError(
            f"table {table.name!r}: parallel says sharding {asked}, but its {table.num_rows} rows "
            f"are too few to give all of {_cuts(asked, world)} ranks some; say sharding: table_wise"
        )
    return ["table_wise"]  # what all tables are asked for is not for the smallest


def _cuts(sharding: str, world: World) -> int:
    return world.ranks if sharding == "row_wise" else world.local_ranks


def _fills(rows: int, ranks: int) -> bool:
    """Returns whether every rank gets rows, as FBGEMM wants, where each takes as many, rounded up.

    Example:
        >>> _fills(10, 4), _fills(9, 4)  # 3 + 3 + 3 + 1 and 3 + 3 + 3 + 0
        (True, False)
    """
    return -(-rows // ranks) * (ranks - 1) < rows


def _sharding(
    table: TableSpec, parallel: ParallelConfig, optimizer: EmbeddingOptimizerConfig
) -> str:
    """Returns the config's sharding; auto of a table that decays is data_parallel."""
    asked = parallel.placement(table.name).sharding or "auto"
    return "data_parallel" if asked == "auto" and _has_copies(table, optimizer) else asked


def _has_copies(table: TableSpec, optimizer: EmbeddingOptimizerConfig) -> bool:
    return table.decays and optimizer.needs_copies


def _check_optimizer(table: TableSpec, sharding: str, optimizer: EmbeddingOptimizerConfig) -> None:
    start = f"table {table.name!r}: parallel says sharding {sharding}, but "
    if sharding != "data_parallel" and _has_copies(table, optimizer):
        raise ValueError(
            start + "embedding_optimizer.weight_decay needs a copy on every rank; say sharding: "
            "data_parallel (or auto), or set training.embedding_optimizer.weight_decay: 0"
        )
    if sharding in BY_COLUMNS and optimizer.kind == "rowwise_adagrad" and not table.frozen:
        raise ValueError(
            start + "rowwise_adagrad has one number for a whole row, and the parts of a row would "
            "each have their own, which is another optimizer; say sharding: row_wise, or "
            "training.embedding_optimizer.kind: adagrad"
        )
    if sharding == "data_parallel" and optimizer.kind == "adam":
        raise ValueError(
            start + "copies of a table are trained by rowwise_adagrad, adagrad or sgd alone; say "
            "sharding: table_wise, or another training.embedding_optimizer.kind"
        )


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


def _too_large(
    tables: Sequence[TableSpec],
    optimizer: EmbeddingOptimizerConfig,
    parallel: ParallelConfig,
    world: World,
) -> str:
    """Says how much memory is missing, in all ranks together or on the largest shard's."""
    needs = {table.name: _need(table, optimizer, parallel, world) for table in tables}
    total = sum(all_bytes for all_bytes, _ in needs.values())
    largest = max(needs, key=lambda name: needs[name][0])
    ranks = "the one rank" if world.ranks == 1 else f"each of {world.ranks} ranks"
    have = f"{ranks} may use {byte_size(world.memory)} (parallel.memory_gib)"
    missing = total - world.ranks * world.memory
    mend = "lower rows, hash_size or dim of tables, or start more ranks"
    if parallel.memory_gib is not None:
        mend = f"raise parallel.memory_gib, {mend}"
    if missing > 0:
        return (
            f"the embedding tables need {byte_size(total)} with their optimizer's state, and "
            f"{have}: {byte_size(missing)} are missing; the largest table is {largest!r} "
            f"({byte_size(needs[largest][0])}): {mend}"
        )
    widest = max(needs, key=lambda name: needs[name][1])
    shard = needs[widest][1]
    sharding = parallel.placement(widest).sharding
    if shard > world.memory:
        return (
            f"table {widest!r} with sharding {sharding} puts {byte_size(shard)} on one rank, and "
            f"{have}: {byte_size(shard - world.memory)} are missing there; say sharding: row_wise, "
            f"or {mend}"
        )
    return (
        f"the embedding tables need {byte_size(total)} with their optimizer's state; {have}, but "
        f"no division found leaves room for what a batch looks up as well; the largest piece is "
        f"one of {widest!r} ({byte_size(shard)}): say sharding: row_wise for large tables, or "
        f"{mend}"
    )


def _need(
    table: TableSpec, optimizer: EmbeddingOptimizerConfig, parallel: ParallelConfig, world: World
) -> tuple[int, int]:
    """Bytes of a table on all ranks together, and of its largest shard."""
    placement = parallel.placement(table.name)
    precision = placement.precision or "fp32"
    whole = shard_bytes(table.num_rows, table.dim, optimizer, precision, table.frozen)
    columns = placement.columns or _even_columns(table.dim, world.ranks)
    divisors: Mapping[str, int] = {
        "row_wise": world.ranks,
        "table_row_wise": world.local_ranks,
        "column_wise": table.dim // columns,
        "table_column_wise": table.dim // columns,
        "grid": world.local_ranks * (table.dim // columns),
        "auto": world.ranks,
    }
    sharding = _sharding(table, parallel, optimizer)
    copies = world.ranks if sharding == "data_parallel" else 1
    return whole * copies, -(-whole // divisors.get(sharding, 1))


def plan_rows(
    tables: Sequence[TableSpec],
    plan: Mapping[str, ParameterSharding],
    optimizer: EmbeddingOptimizerConfig,
    parallel: ParallelConfig,
    ranks: int,
) -> list[dict[str, Any]]:
    """Lists the plan for JSON, one entry a table.

    See `EmbeddingBackend.plan_summary`.
    """
    return [
        {
            "table": table.name,
            "rows": table.num_rows,
            "dim": table.dim,
            "sharding": _word(SHARDINGS, plan[module_name(table.name)].sharding_type),
            "kernel": _word(KERNELS, plan[module_name(table.name)].compute_kernel),
            "precision": parallel.placement(table.name).precision,
            "pieces": _shards(table, plan[module_name(table.name)], optimizer, parallel, ranks),
        }
        for table in tables
    ]


def _word(words: Mapping[str, Any], value: str) -> str:
    return next((word for word, known in words.items() if known.value == value), value)


def _shards(
    table: TableSpec,
    sharding: ParameterSharding,
    optimizer: EmbeddingOptimizerConfig,
    parallel: ParallelConfig,
    ranks: int,
) -> list[dict[str, Any]]:
    spec: Any = sharding.sharding_spec
    if spec is None:  # a copy on every rank
        regions = [(rank, (0, 0), (table.num_rows, table.dim)) for rank in range(ranks)]
    else:
        regions = [(s.placement.rank(), s.shard_offsets, s.shard_sizes) for s in spec.shards]
    precision = parallel.placement(table.name).precision or "fp32"
    return [
        {
            "rank": rank,
            "rows": [first[0], first[0] + size[0]],
            "columns": [first[1], first[1] + size[1]],
            "bytes": shard_bytes(size[0], size[1], optimizer, precision, table.frozen),
        }
        for rank, first, size in regions
        if size[0]
    ]
