"""Where training stands, and how it is saved and restored."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from mmoe.embeddings import managed_ids
from mmoe.models.ranker import Ranker
from mmoe.score.checkpoint import (
    CheckpointFolder,
    copy_id_maps,
    copy_into,
    with_prefix,
    without_prefix,
)
from mmoe.train.optim import flatten_optimizer, unflatten_optimizer
from mmoe.train.random_state import random_states, restore_random_states


@dataclass
class Position:
    """How far training has come. Everything here is in state.json of a checkpoint."""

    epoch: int = 0  # epochs finished
    batch: int = 0  # batches of the current epoch that are done
    step: int = 0  # steps since the start
    seconds: float = 0.0  # spent training, validation left out
    best_value: float | None = None
    epochs_without_gain: int = 0
    finished: bool = False
    train_rows: int = 0  # of the training split, to notice that the data changed
    fingerprint: str = ""  # of streamed files; their order follows from seed, epoch and batch
    loss_sums: list[float] = field(default_factory=list)  # of the current epoch, per task
    loss_rows: list[float] = field(default_factory=list)
    epoch_seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class TrainingState:
    """All that a resumed run needs to go on as if it had never stopped."""

    ranker: Ranker
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None
    position: Position

    @property
    def scoring_network(self) -> nn.Module:
        """The network that is evaluated: the average where there is one."""
        return self.ranker.network if self.average is None else self.average.module

    def save(self, folder: CheckpointFolder, *, best: bool) -> None:
        """Writes a checkpoint. model.safetensors is what scores; the rest is for resuming."""
        embeddings = self.ranker.tables
        model = with_prefix("network", self.scoring_network.state_dict())
        model |= with_prefix("tables", embeddings.table_weights())
        network = self.ranker.network
        training = with_prefix("optimizer", flatten_optimizer(self.optimizer, network))
        training |= with_prefix("accumulators", embeddings.optimizer_state())
        ids = managed_ids(embeddings)
        if ids is not None:
            model |= with_prefix("ids", ids.maps())
            training |= with_prefix("ids", ids.progress())
        training |= random_states(self.ranker.device)
        if self.average is not None:
            training |= with_prefix("raw", network.state_dict())
            training["averaged"] = self.average.n_averaged
        folder.save(self.position.step, model, training, asdict(self.position), best=best)

    def restore(self, folder: CheckpointFolder) -> str | None:
        """Continues from the latest checkpoint, of whatever device.

        Returns:
            A line for the user where the run was on another kind of device.
        """
        model, training = folder.model("latest"), folder.training()
        what, network = str(folder.path), self.ranker.network
        scoring = without_prefix("network", model)
        if self.average is None:
            copy_into(network.state_dict(), scoring, what)
        else:
            copy_into(self.average.module.state_dict(), scoring, what)
            self.average.n_averaged.copy_(training["averaged"])
            copy_into(network.state_dict(), without_prefix("raw", training), what)
        embeddings = self.ranker.tables
        copy_into(embeddings.table_weights(), without_prefix("tables", model), what)
        copy_into(embeddings.optimizer_state(), without_prefix("accumulators", training), what)
        copy_id_maps(embeddings, model, what)
        ids = managed_ids(embeddings)
        if ids is not None:
            ids.load_progress(without_prefix("ids", training))
        unflatten_optimizer(self.optimizer, network, without_prefix("optimizer", training))
        self.position = Position(**folder.state(field.name for field in fields(Position)))
        return restore_random_states(training, self.ranker.device)

    def restore_best(self, folder: CheckpointFolder) -> None:
        """Puts the best checkpoint's weights into the ranker, for evaluation."""
        model, what = folder.model("best"), str(folder.path)
        copy_into(self.ranker.network.state_dict(), without_prefix("network", model), what)
        tables: dict[str, Tensor] = self.ranker.tables.table_weights()
        copy_into(tables, without_prefix("tables", model), what)
        copy_id_maps(self.ranker.tables, model, what)
