"""Predictions from a model, in batches of one fixed height."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

from mmoe.config import DeviceKind, RunConfig, ScoringPrecision
from mmoe.datasets.encoded import EncodedData
from mmoe.datasets.encoder import FeatureEncoder
from mmoe.models.build import build_ranker
from mmoe.models.device import resolve_device
from mmoe.models.network import GateRecord, NetworkOutput
from mmoe.models.ranker import Ranker
from mmoe.parallel import ensure_process_group, spread_layout, world_size
from mmoe.score.checkpoint import CheckpointFolder
from mmoe.score.console import SilentReporter, Tracker
from mmoe.score.run_directory import RunDirectory
from mmoe.score.weights import load_weights
from mmoe.tasks.predictions import predictions_from_logits

# Matrix products treat the rows beyond the last whole tile of their kernel differently; with whole
# tiles a row's place in the batch plays no part. (Tried at 17 and 1000 rows, where 16 did as well.)
ROWS_PER_TILE = 64

GateCallback = Callable[[Sequence[GateRecord], int], None]


class Predictor:
    """Scores encoded rows; `evaluate`, `score` and validation all go through it.

    Batches have one fixed height, the last padded, because a matrix product of another height may
    take another kernel and round differently: so a row's score is the same whatever stands beside
    it, and wherever in the file it stands. With another number of threads a product library may
    split its sums differently; scores then agree within 1e-6 (one and two threads: no difference).

    Args:
        ranker: The model, on the device that scores.
        config: Its config: tasks, batch height, precision.
    """

    def __init__(self, ranker: Ranker, config: RunConfig) -> None:
        self.ranker = ranker
        self.tasks = config.tasks
        self.height = config.training.eval_batch_size
        self.bf16 = config.training.precision == "bf16"

    def predict(
        self,
        data: EncodedData,
        *,
        tracker: Tracker | None = None,
        on_gates: GateCallback | None = None,
    ) -> np.ndarray:
        """Predictions for every row.

        Of several ranks each has rows of its own, and alone gets predictions for them. Tables and
        experts may be spread over the ranks, so all take part in every turn: a rank whose rows are
        done goes on with `help_others`.

        Args:
            data: N rows; labels are not looked at.
            tracker: Told of every batch.
            on_gates: Given each batch's gate weights and its count of real rows.

        Returns:
            predictions_NT float32: probabilities for binary tasks, values for regression.
        """
        tracker = tracker or next(iter(_silent()))
        out_NT = np.zeros((len(data), len(self.tasks)), np.float32)
        if not len(data):
            return out_NT  # no turn: one without rows tells the others that all are done
        with self._evaluating():
            for turn in range(_most_of_all_ranks(-(-len(data) // self.height))):
                start = min(turn * self.height, len(data))
                self._batch(data, start, out_NT, on_gates)
                tracker.advance(min(self.height, len(data) - start))
        return out_NT

    def help_others(self, empty: EncodedData) -> None:
        """Takes part in the turns of other ranks until none of them has rows left.

        Args:
            empty: No rows, but the run's features.
        """
        with self._evaluating():
            while turns := _most_of_all_ranks(0):
                for _ in range(turns):
                    self._forward(empty, 0, 0, False)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        was_training = self.ranker.training
        self.ranker.eval()
        try:
            yield
        finally:
            self.ranker.train(was_training)

    def _batch(
        self, data: EncodedData, start: int, out_NT: np.ndarray, on_gates: GateCallback | None
    ) -> None:
        stop = min(start + self.height, len(data))
        output = self._forward(data, start, stop, on_gates is not None)
        predictions = predictions_from_logits(output.logits_BT, self.tasks)
        out_NT[start:stop] = predictions[: stop - start].cpu().numpy()
        if on_gates is not None and stop > start:
            on_gates(output.gates, stop - start)

    def _forward(
        self, data: EncodedData, start: int, stop: int, return_gates: bool
    ) -> NetworkOutput:
        padded = -(-self.height // ROWS_PER_TILE) * ROWS_PER_TILE
        device = self.ranker.device
        batch = data.batch(slice(start, stop), pad_to=padded).to(device)
        # no_grad, not inference_mode: FBGEMM's CPU tables refuse the latter
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            return self.ranker(
                batch.dense_BF,
                batch.values,
                batch.lengths_CB,
                return_gates=return_gates,
                id_weights=batch.id_weights,
            )


def load_predictor(
    run: RunDirectory,
    device: DeviceKind = "auto",
    *,
    table_precision: ScoringPrecision | None = None,
) -> tuple[Predictor, FeatureEncoder, RunConfig]:
    """The best model of a run, ready to score.

    Args:
        run: A trained run.
        device: To score on, whatever the run was trained on; see `resolve_device`.
        table_precision: int8 or fp16: tables in fewer bits, filled block by block from the
            checkpoint, on the CPU whatever the device; None: as they were trained.

    Raises:
        ValueError: The checkpoint and the config do not fit each other, or cannot be read; there is
            no such device or precision; or a table holds numbers that the precision cannot.
    """
    config = run.config()
    encoder = FeatureEncoder.load(run.vocabulary)
    # Tables to score with lie on the CPU: they need no FBGEMM with CUDA
    backend = config.training.embedding_backend if table_precision is None else "plain"
    place = resolve_device(device, backend)
    ensure_process_group(config.parallel.timeout_seconds, place)
    ranker = build_ranker(config, encoder, place, table_precision=table_precision)
    stored = CheckpointFolder(run.checkpoint).tensors("best", "model")
    load_weights(ranker, stored, spread_layout(ranker.network))
    return Predictor(ranker, config), encoder, config


def _most_of_all_ranks(turns: int) -> int:
    if world_size() == 1:
        return turns
    most = torch.tensor(turns)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


def _silent() -> list[Tracker]:
    with SilentReporter().track("", None, "rows") as tracker:
        return [tracker]
