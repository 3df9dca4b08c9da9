"""Spread of a run over ranks. One process ignores all of it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from mmoe.config.kinds import Name, Strict

Sharding = Literal[
    "auto",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid",
    "data_parallel",
]
Kernel = Literal["auto", "fused", "uvm", "uvm_caching"]
Precision = Literal["fp32", "fp16"]
# Of tables that are only looked up (`--table-precision`)
ScoringPrecision = Literal["fp16", "int8"]


def _word(value: object) -> object:
    return "off" if value is False else value  # YAML reads a bare `off` as false


Pipeline = Annotated[Literal["auto", "off"], BeforeValidator(_word)]
Rebalance = Annotated[Literal["off", "epoch"], BeforeValidator(_word)]


class TablePlacement(Strict):
    """Placement of a table's rows; a key that is left out has the value of all tables."""

    sharding: Sharding | None = Field(
        default=None,
        description="table_wise: whole on one rank; row_wise: rows over all ranks; column_wise, "
        "table_column_wise: columns over ranks; table_row_wise: rows over the ranks of one "
        "machine; grid: columns over machines, rows over the ranks of each; data_parallel: whole "
        "on every rank; auto: TorchRec's planner picks. Row-wise Adagrad has one number for a "
        "whole row, so its tables are never cut by columns, unless they are frozen",
    )
    kernel: Kernel | None = Field(
        default=None,
        description="fused: rows in the memory of the device; uvm: in that of the machine, read "
        "by the GPU; uvm_caching: the same, with a cache on the GPU; auto: fused, or where there "
        "are GPUs what the planner picks",
    )
    precision: Precision | None = Field(
        default=None, description="of the stored rows; their optimizer's state is fp32"
    )
    columns: int | None = Field(
        default=None,
        ge=4,
        multiple_of=4,  # FBGEMM reads rows in vectors of four
        description="width of a shard where a table is cut by columns; default: an even part",
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _trainable(cls, precision: object) -> object:
        if precision == "int8":
            raise ValueError(
                "int8 rows cannot be trained (FBGEMM's CPU kernels have no gradient for them); "
                "train in fp32 or fp16, and evaluate and score with --table-precision int8"
            )
        return precision

    def over(self, other: "TablePlacement") -> "TablePlacement":
        """Returns these keys, and those of `other` where they are left out.

        Example:
            >>> rows = TablePlacement(sharding="row_wise")
            >>> rows.over(TablePlacement(sharding="auto", precision="fp16")).precision
            'fp16'
        """
        return other.model_copy(update=self.model_dump(exclude_none=True))


# What a table has that says nothing, in a config that says nothing of all tables
_USUAL = TablePlacement(sharding="auto", kernel="auto", precision="fp32")


class ParallelConfig(Strict):
    """Ranks: what each holds, and how they talk (`torchrun --nproc-per-node N -m mmoe train …`)."""

    experts: Literal["auto", "replicated", "spread"] = Field(
        default="auto",
        description="replicated: every rank has all experts, and their gradients are added up; "
        "spread: each rank has some, and rows travel to them; auto: spread where the gates pick "
        "(top_k), replicated where every gate reads every expert",
    )
    replicas: int = Field(
        default=1,
        ge=1,
        description="how many ranks hold each spread expert: the ranks are divided into so many "
        "groups of neighbours, each with all experts; rows travel inside a group, and gradients of "
        "experts are added up over the groups. It divides the number of ranks",
    )
    experts_per_rank: int | None = Field(
        default=None,
        ge=1,
        description="in place of replicas: so many experts of each pool on a rank, in as many "
        "groups as that makes",
    )
    slices: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        default=1,
        description="where ranks outnumber experts: each spread expert is cut into so many along "
        "its hidden units, which are spread in its place and add up to it; auto: into as few as "
        "give each rank of a group one, and none where experts cannot be cut. Cut are experts of "
        "kind mlp with two widths, no norm and output_activation: none. Saved and scored are "
        "whole experts",
    )
    shadowed: list[Annotated[int, Field(ge=1)]] = Field(
        default=[],
        max_length=4096,
        description="spread experts that many rows pick, by the numbers that mmoe explain gives "
        "them (from 1 on): their weights are copied to every rank for a step, so that their rows "
        "stay; exchange: gathered does so with all experts",
    )
    wire_precision: Literal["same", "bf16"] = Field(
        default="same", description="what rows travel in to experts of other ranks, and back"
    )
    exchange: Literal["rows", "hierarchical", "gathered", "auto"] = Field(
        default="rows",
        description="how rows and spread experts meet. rows: each row goes straight to the ranks "
        "of its experts; hierarchical: to each other host once, where it fans out; gathered: "
        "experts' weights are copied to every rank for a step, and rows stay; auto: whichever "
        "links and experts, measured at the start and looked at again now and then, make fastest",
    )
    chunks: int = Field(
        default=1,
        ge=1,
        le=64,
        description="a rank's part of the batch travels to spread experts in so many pieces, one "
        "of them while the experts compute another; left out where exchange is auto",
    )
    host_size: int | None = Field(
        default=None,
        ge=1,
        description="ranks on each host, neighbours together; default: as the launcher says "
        "(LOCAL_WORLD_SIZE)",
    )
    rebalance: Rebalance = Field(
        default="off",
        description="epoch: after each epoch, spread experts change ranks where the busiest rank "
        "is then done 5 % sooner, told from the rows that each computed; weights, moments and "
        "averages move with them. off: they stay where they are",
    )
    pipeline: Pipeline = Field(
        default="auto",
        description="auto: the ids of the next step leave for the ranks that hold their rows while "
        "this one is trained on (TorchRec's TrainPipelineSparseDist), the same to the bit; not on "
        "one process, and not with managed ids, whose rows may change hands between two steps. "
        "off: ids leave when their step begins",
    )
    timeout_seconds: int = Field(
        default=1800,
        ge=1,
        le=86_400,
        description="a rank that has waited so long for another ends with an error",
    )
    tables: TablePlacement = Field(
        default=TablePlacement(),
        description="where the embedding tables are, unless per_table says",
    )
    per_table: dict[Name, TablePlacement] = Field(
        default_factory=dict, description="tables that are placed otherwise, by name"
    )
    bind_cores: bool = Field(
        default=True,
        description="ranks without GPUs keep to cores of their own, neighbours together, unless "
        "the launcher has bound them; false: they run where the system puts them",
    )
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="what the tables of one rank, with their optimizer's state and what a batch "
        "looks up, may take; default: the memory of the device, or that of the machine divided by "
        "its ranks",
    )

    def _ensure_auto_chooses_chunks(self) -> None:
        if self.exchange == "auto" and self.chunks > 1:
            raise ValueError(
                f"chunks is {self.chunks}, but exchange: auto chooses them; leave chunks out, or "
                "set exchange to rows or hierarchical"
            )
        if self.exchange == "gathered" and self.chunks > 1:
            raise ValueError(
                f"chunks is {self.chunks}, but with exchange: gathered no row travels; leave "
                "chunks out, or set exchange to rows or hierarchical"
            )

    def _ensure_some_are_shadowed(self) -> None:
        if len(set(self.shadowed)) < len(self.shadowed):
            raise ValueError(f"shadowed names an expert twice: {self.shadowed}; name each once")
        does = {
            "auto": "exchange: auto chooses them while training goes on",
            "gathered": "exchange: gathered copies the weights of all",
        }
        if self.shadowed and self.exchange in does:
            raise ValueError(
                f"shadowed names experts, but {does[self.exchange]}; leave shadowed out, or set "
                "exchange to rows or hierarchical"
            )

    def _ensure_slices_go_to_all_ranks_of_a_group(self) -> None:
        if self.experts_per_rank is not None and self.slices not in (1, "auto"):
            raise ValueError(
                f"slices is {self.slices}, but experts_per_rank is {self.experts_per_rank}, so "
                "many whole experts on a rank; leave one out, or say groups by replicas"
            )

    def _ensure_replicas_are_of_spread_experts(self) -> None:
        asked = ["replicas"] * (self.replicas > 1)
        asked += ["experts_per_rank"] * (self.experts_per_rank is not None)
        if len(asked) > 1:
            raise ValueError(
                "replicas and experts_per_rank both say how many ranks make a group that holds all "
                "experts; leave one out"
            )
        if asked and self.experts == "replicated":
            raise ValueError(
                f"{asked[0]} is for spread experts, but experts is replicated, which is a replica "
                "on every rank; set experts: spread, or leave it out"
            )

    def placement(self, table: str) -> TablePlacement:
        """Returns the placement of one table; no key is left out but `columns`."""
        return self.per_table.get(table, TablePlacement()).over(self.tables).over(_USUAL)
