"""Placement of a model: its device, and its `Layout` over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch

from mmoe.config import DeviceKind, ModelConfig, ParallelConfig, RunConfig
from mmoe.embeddings import torchrec_problem
from mmoe.mixture import MLPExperts, Pool, cut_into_slices
from mmoe.mixture.dispatcher import ONE_RANK, RankSums
from mmoe.mixture.experts.sliced import can_be_cut
from mmoe.mixture.inputs import RequestColumns
from mmoe.parallel import AllReduceSums, Hosts, Mode, ReplicaGroups, rank, world_size
from mmoe.parallel.experts.replicas import OwnGroups
from mmoe.parallel.launch.launcher import local_rank, local_ranks

_DEFAULTS = ParallelConfig()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of a network over ranks: who holds which experts; towers and gates are on all.

    Attributes:
        world_size: W.
        rank: Of this process.
        spread: Each expert is on one rank, of every level's pool as evenly as can be
            (`ExpertPlacement.even`); else every rank has all experts.
        groups: Makes groups of ranks that hold all experts together; None: all ranks are one.
        parallel: Says how many groups there are, by `replicas` or `experts_per_rank`, into how many
            `slices` each spread expert is cut along its hidden units, and how rows travel.
        hosts: How the ranks lie on hosts; None: as the launcher says.
        sums: By which gates' losses, and batch norms, see the rows of all ranks.
        stage_columns: For each of `model.stages`, the columns of x that its gates and experts read;
            None: all of them.
        requests: Which columns of x are of requests; None: rows have none.
    """

    world_size: int = 1
    rank: int = 0
    spread: bool = False
    groups: ReplicaGroups | None = None
    parallel: ParallelConfig = _DEFAULTS
    hosts: Hosts | None = None
    sums: RankSums = ONE_RANK
    stage_columns: tuple[Sequence[int] | None, ...] = ()
    requests: RequestColumns | None = None

    @property
    def wire_dtype(self) -> torch.dtype | None:
        """Type in which rows travel to spread experts; None: their own."""
        return torch.bfloat16 if self.parallel.wire_precision == "bf16" else None

    @property
    def mode(self) -> Mode | Literal["auto"]:
        """How rows and spread experts meet; `auto`: chosen while training goes on."""
        if self.parallel.exchange == "auto":
            return "auto"
        return Mode(
            hierarchical=self.parallel.exchange == "hierarchical",
            chunks=self.parallel.chunks,
            shadowed="all" if self.parallel.exchange == "gathered" else (),
        )

    def own_groups(self, num_experts: int) -> OwnGroups:
        """Returns the groups over which a pool is spread; all ranks together.

        Args:
            num_experts: E.

        Raises:
            ValueError: The ranks, or the experts, cannot be divided so.
        """
        ranks, replicas = self.world_size, self.parallel.replicas
        each, size = self.parallel.experts_per_rank, ranks // replicas
        if each is not None:
            size = num_experts // each
            if num_experts % each or ranks % size:
                raise ValueError(
                    f"parallel.experts_per_rank is {each}, but {num_experts} experts by {each} on "
                    f"a rank do not make groups that divide {ranks} ranks; set another number, or "
                    "parallel.replicas"
                )
        elif ranks % replicas:
            raise ValueError(
                f"parallel.replicas is {replicas}, but {ranks} ranks cannot be divided into "
                "so many groups of one size; set a number that divides them"
            )
        if size == ranks:
            return OwnGroups(self.rank, ranks, 1, None, None, None)
        assert self.groups is not None, "made where replicas are asked for"
        return self.groups.of_size(size)

    def cut(self, pool: Pool, ranks: int) -> Pool:
        """Returns the experts as they are to be spread: in slices, or whole.

        Args:
            pool: All E experts.
            ranks: Of a group.

        Raises:
            ValueError: `slices` is a number, and they cannot be cut into so many.
        """
        asked = self.parallel.slices
        slices = fewest_slices(pool, ranks) if asked == "auto" else asked
        if slices == 1:
            return pool
        try:
            return cut_into_slices(pool, slices)
        except ValueError as error:
            raise ValueError(
                f"parallel.slices is {asked}, but these experts cannot be cut so: {error}; "
                "or set parallel.slices: 1, or auto, which cuts them where it can"
            ) from None

    def hosts_of(self, own: OwnGroups) -> Hosts | None:
        """Returns how the ranks of a group lie on hosts; as one host, where hosts would cut it."""
        if own.experts is None or self.hosts is None:
            return self.hosts
        whole = own.size % self.hosts.size == 0
        size = self.hosts.size if whole else own.size
        return Hosts(num_ranks=own.size, size=size, group=own.experts)


ONE_PROCESS = Layout()


def fewest_slices(pool: Pool, ranks: int) -> int:
    """Returns into how few slices to cut experts so that each rank gets one; 1: they stay whole.

    Args:
        pool: All E experts.
        ranks: W.

    Example:
        >>> from mmoe.mixture import MLPExperts
        >>> [fewest_slices(MLPExperts(2, 8, [6, 3], output_activation=None), w) for w in (2, 3, 5)]
        [1, 2, 3]
    """
    if len(pool) >= ranks or not can_be_cut(pool):
        return 1
    hidden = cast(MLPExperts, pool).weights[1].shape[1]
    numbers = [r for r in range(1, hidden + 1) if hidden % r == 0]
    return next((r for r in numbers if len(pool) * r >= ranks), hidden)


def choose_layout(model: ModelConfig, parallel: ParallelConfig | None) -> Layout:
    """Returns the layout over the ranks of the process group, or of one process.

    Args:
        model: Its gates decide what `experts: auto` means.
        parallel: None: this process is on its own, whatever ranks there are.

    Example:
        >>> choose_layout(ModelConfig(), ParallelConfig()).world_size
        1
    """
    if parallel is None or world_size() == 1:
        return ONE_PROCESS
    spread, size = experts_are_spread(model, parallel), parallel.host_size
    grouped = parallel.replicas > 1 or parallel.experts_per_rank is not None
    return Layout(
        world_size=world_size(),
        rank=rank(),
        spread=spread,
        groups=ReplicaGroups(parallel.timeout_seconds) if grouped else None,
        parallel=parallel,
        # A size that does not divide the ranks is refused here, before the run has a folder
        hosts=Hosts.of_group(host_size=size) if spread or size is not None else None,
        sums=AllReduceSums(),
    )


def to_score(config: RunConfig) -> RunConfig:
    """Returns a config by which any number of ranks can score: each spread expert is whole, once.

    A `host_size` that does not divide their number is left to the launcher.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> raw = {
        ...     "features": [{"kind": "numeric", "name": "age"}],
        ...     "tasks": [{"name": "click", "label": "click"}],
        ...     "parallel": {"replicas": 2},
        ... }
        >>> to_score(config_from_dict(raw)).parallel.replicas
        1
    """
    size = config.parallel.host_size
    divides = size is not None and world_size() % size == 0
    once = {
        "replicas": 1,
        "experts_per_rank": None,
        "slices": 1,
        "host_size": size if divides else None,
    }
    return config.model_copy(update={"parallel": config.parallel.model_copy(update=once)})


def experts_are_spread(model: ModelConfig, parallel: ParallelConfig) -> bool:
    """Returns whether each rank of several holds some of the experts.

    With `experts: auto` they are where the gates pick. Where every gate reads every expert, each
    row would travel to every rank; adding up gradients sends less, but for very large experts.

    Example:
        >>> sparse = ModelConfig(gate={"kind": "top_k", "k": 2})
        >>> [experts_are_spread(m, ParallelConfig()) for m in (ModelConfig(), sparse)]
        [False, True]
    """
    if parallel.experts != "auto":
        return parallel.experts == "spread"
    picks = model.has_gates and model.gate.picks is not None
    return picks and model.execution in ("auto", "grouped")


def resolve_device(
    asked: DeviceKind = "auto", backend: Literal["auto", "torchrec", "plain"] = "auto"
) -> torch.device:
    """Returns the device that was asked for, or the best there is.

    Args:
        asked: `auto` takes a GPU where the model can run on it, else the CPU.
        backend: `training.embedding_backend`. On a GPU `torchrec` needs an FBGEMM with CUDA; `auto`
            runs without it.

    Returns:
        `cpu`, or `cuda:N` with N the rank on this machine as torchrun numbers it (0 without it).

    Raises:
        ValueError: `cuda` was asked for and cannot be had; says why, and the way out.

    Example:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    if asked == "cpu":
        return torch.device("cpu")
    problem = _cuda_problem(backend)
    if problem is None:
        return torch.device("cuda", local_rank())
    if asked == "cuda":
        raise ValueError(
            f"device is cuda, but {problem}; or use the CPU: training.device: cpu in the config, "
            "--device cpu on the command line"
        )
    return torch.device("cpu")


def describe_device(device: torch.device) -> str:
    """Returns a device's name for people: `cpu`, or `cuda:0 (NVIDIA H100)`."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def _cuda_problem(backend: str) -> str | None:
    """Returns why no GPU can be used and how to mend it; or None."""
    if not torch.cuda.is_available():
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {torch.__version__} is built without CUDA: install a build with it"
        return "torch sees no CUDA device: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    ranks, devices = local_ranks(1), torch.cuda.device_count()
    if max(ranks, local_rank() + 1) > devices:
        return (
            f"this machine has {devices} CUDA device(s) for {ranks} ranks: start no more ranks on "
            "it than it has devices (torchrun --nproc-per-node)"
        )
    problem = torchrec_problem(torch.device("cuda")) if backend == "torchrec" else None
    if problem is not None:
        return (
            f"embedding_backend is torchrec and {problem}: install fbgemm-gpu and torchrec for "
            "CUDA (see the README), or set embedding_backend: auto"
        )
    return None
