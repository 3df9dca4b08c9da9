"""State of training: where it stands, how it is saved and restored."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

import torch
from pydantic import create_model
from torch import Tensor, nn

from mmoe.checkpoint import (
    CheckpointFolder,
    CheckpointSaver,
    StoredTensors,
    load_network,
    load_weights,
)
from mmoe.checkpoint.folder import with_prefix
from mmoe.checkpoint.resume_state import RandomState, flatten_optimizer, unflatten_optimizer
from mmoe.config import Count, Number, Stored
from mmoe.embeddings import managed_ids
from mmoe.models import MixtureNetwork, Ranker
from mmoe.parallel import (
    Balance,
    Shard,
    local_shards,
    rank,
    rebalance_experts,
    spread_layout,
    world_size,
)
from mmoe.parallel.experts.moves import place_as, placements
from mmoe.parallel.sharded_tensors import TensorMap, cut_all, cut_like
from mmoe.train.frozen import Frozen
from mmoe.train.optim import Average


@dataclass
class Position:
    """Progress of training: the content of a checkpoint's state.json."""

    epoch: Count = 0  # epochs finished
    batch: Count = 0  # batches of the current epoch that are done
    step: Count = 0  # steps since the start
    seconds: Number = 0.0  # spent training, validation left out
    best_value: Number | None = None
    epochs_without_gain: Count = 0
    finished: bool = False
    train_rows: Count = 0  # of the training split, to notice that the data changed
    fingerprint: str = ""  # of streamed files; their order follows from seed, epoch and batch
    loss_sums: list[Number] = field(default_factory=list)  # of the current epoch, per task
    loss_rows: list[Number] = field(default_factory=list)
    epoch_seconds: Number = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class TrainingState:
    """State that a resumed run needs to go on as if it had never stopped.

    Attributes:
        ranker: Network and tables.
        optimizer: Of the network.
        average: Of the network's weights, where there is one.
        position: How far training has come.
        frozen: What stays as it scores; nothing, unless the config says so.
        layout: How tensors of the network are cut that this rank holds shards of, by their names
            in its `state_dict`.
        draws: Random numbers of its forward passes (dropout, noise of gates).
    """

    ranker: Ranker
    optimizer: torch.optim.Optimizer
    average: Average | None
    position: Position
    layout: Mapping[str, Sequence[Shard]] = field(default_factory=dict)
    frozen: Frozen = field(default_factory=Frozen)
    draws: RandomState = field(default_factory=RandomState)

    def train_mode(self) -> None:
        """Puts the ranker into training mode, but for what is frozen."""
        self.ranker.train()
        self.frozen.settle()

    @property
    def scoring_network(self) -> MixtureNetwork:
        """Network that is evaluated: the average where there is one."""
        average = self.average
        return self.ranker.network if average is None else cast(MixtureNetwork, average.module)

    def rebalance(self) -> dict[str, Balance]:
        """Moves spread experts to ranks where the busiest is done sooner; all ranks together.

        Returns:
            What became better, by the names of mixtures; see `rebalance_experts`.
        """
        better = rebalance_experts(self.ranker.network, self.optimizer, self._averaged)
        if better:
            self._placed_anew()
        return better

    @property
    def _averaged(self) -> list[nn.Module]:
        return [] if self.average is None else [self.average.module]

    def _placed_anew(self) -> None:
        """Other tensors are here now, or lie elsewhere."""
        self.layout = spread_layout(self.ranker.network)
        if self.average is not None:
            self.average.pairs = None

    def save(self, checkpoints: CheckpointSaver, *, best: bool) -> None:
        """Writes a checkpoint; all ranks together.

        `model` is what scores, `training` what resuming needs beside it.
        """
        embeddings, network = self.ranker.tables, self.ranker.network
        moments = flatten_optimizer(self.optimizer, network)
        # Two states: scoring reads `model` alone
        model: dict[str, Tensor | Sequence[Shard]] = {
            **with_prefix("network", cut_all(self.scoring_network.state_dict(), self.layout)),
            **with_prefix("tables", embeddings.table_shards()),
        }
        training: dict[str, Tensor | Sequence[Shard]] = {
            **with_prefix("optimizer", self._cut(moments)),
            **with_prefix("accumulators", embeddings.optimizer_shards()),
            **self.draws.shards(),
        }
        if self.ranker.wide is not None:
            model |= with_prefix("wide", self.ranker.wide.state_dict())
        ids = managed_ids(embeddings)
        if ids is not None:
            model |= with_prefix("ids", ids.maps())
            training |= with_prefix("ids", ids.progress())
        # The average is in `model`, since it scores; what it averages is needed to train on
        if self.average is not None:
            training |= with_prefix("raw", cut_all(network.state_dict(), self.layout))
            training["averaged"] = self.average.n_averaged
        training |= with_prefix("placement", placements(network))
        checkpoints.save(self.position.step, model, training, asdict(self.position), best=best)

    def restore(self, folder: CheckpointFolder, *, seed: int = 0) -> str | None:
        """Continues from the latest checkpoint, whatever device or number of ranks wrote it.

        With the same number every rank goes on with its random numbers (dropout, noise of gates);
        with another they start from seed + rank.

        Returns:
            A line for the user where the run was on another kind of device.
        """
        model, training = (folder.tensors("latest", state) for state in ("model", "training"))
        network, embeddings = self.ranker.network, self.ranker.tables
        if placed := training.part("placement").whole():
            place_as([network, *self._averaged], self.optimizer, placed)
            self._placed_anew()
        load_weights(self.ranker, model, self.layout)
        if self.average is not None:
            load_network(self.scoring_network, model.part("network"), self.layout)
            load_network(network, training.part("raw"), self.layout)
            training.load({"averaged": self.average.n_averaged}, all_names=False)
        accumulators = training.part("accumulators")
        accumulators.load(embeddings.optimizer_shards(), all_names=world_size() == 1)
        ids = managed_ids(embeddings)
        if ids is not None:
            ids.load_progress(training.part("ids").whole())
        moments = self._stored_moments(training.part("optimizer"))
        unflatten_optimizer(self.optimizer, network, moments)
        state = folder.state(_stored_position())
        self.position = Position(**{f.name: state[f.name] for f in fields(Position)})
        if rank() == 0:
            folder.remove_strays()
        return self.draws.load(training, seed)

    def restore_best(self, folder: CheckpointFolder) -> None:
        """Loads the best checkpoint's weights into the ranker, for evaluation."""
        load_weights(self.ranker, folder.tensors("best", "model"), self.layout)

    def _stored_moments(self, stored: StoredTensors) -> dict[str, Tensor]:
        """Optimizer moments in a checkpoint that this rank needs."""
        mine = dict(self.ranker.network.named_parameters())
        moments = {}
        for name in stored.names():
            parameter = mine.get(_parameter(name))
            if parameter is not None:
                shape = stored.shape(name)
                if shape and _parameter(name) in self.layout:
                    shape = parameter.shape  # of this rank's shards
                # Zeros, since of slices not all that is here is in the whole
                moments[name] = torch.zeros(shape, dtype=stored.dtype(name))
        stored.load(self._cut(moments), all_names=world_size() == 1)
        return moments

    def _cut(self, moments: Mapping[str, Tensor]) -> TensorMap:
        """Cuts moments as the parameters are; counts of steps are the same on all ranks."""
        cut: dict[str, Tensor | Sequence[Shard]] = dict(moments)
        for name, moment in moments.items():
            shards = self.layout.get(_parameter(name))
            if shards is not None:
                cut[name] = cut_like(moment, shards) if moment.dim() else local_shards(moment)
        return cut


def _stored_position() -> type[Stored]:
    """The shape of state.json: the fields of a position, by their types."""
    kinds: dict[str, Any] = {f.name: (f.type, ...) for f in fields(Position)}
    return create_model("StoredPosition", __base__=Stored, **kinds)


def _parameter(name: str) -> str:
    """`weight/exp_avg` → `weight`."""
    return name.rpartition("/")[0]
