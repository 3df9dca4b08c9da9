"""Passes over labelled rows: what is predicted with all experts, and without each."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mmoe.config import RunConfig
from mmoe.config.tasks import prediction_columns
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedData, EncodedLabels, join_labels
from mmoe.explain.places import ExpertPlace
from mmoe.explain.without import MixWithout
from mmoe.models.network import GateRecord
from mmoe.models.ranker import Ranker
from mmoe.predictor import Predictor
from mmoe.run.console import Tracker
from mmoe.score.pipeline import in_order, scoring_threads
from mmoe.tasks.gate_statistics import GateStatistics


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What one pass predicted.

    Attributes:
        base_NP: With all experts, float32; a column for each of `prediction_columns`.
        without_VNP: Without each of the experts that were left out.
        labels: Of the rows.
        gates: What the gates did.
    """

    base_NP: np.ndarray
    without_VNP: np.ndarray
    labels: EncodedLabels
    gates: GateStatistics


def predict_without(
    ranker: Ranker,
    config: RunConfig,
    rows: BatchSource,
    left_out: Sequence[ExpertPlace],
    tracker: Tracker,
    *,
    refill: bool = False,
) -> Predicted:
    """Predicts every row with all experts, and without each of some, in one pass.

    Args:
        ranker: The model; it is put into evaluation mode.
        config: Of its run.
        rows: With labels.
        left_out: Experts.
        tracker: Told of every batch.
        refill: Gates that pick decide again.
    """
    predictor = Predictor(ranker, config)
    gates, found = GateStatistics(), list[np.ndarray]()
    labels: list[EncodedLabels] = []
    with closing(rows.chunks()) as chunks:
        for chunk in chunks:
            assert chunk.labels is not None, "these rows carry labels"
            labels.append(chunk.labels)
            for batch in _batches(predictor, chunk, left_out, refill=refill):
                found.append(batch.every_VNP)
                gates.update(batch.gates, len(batch))
                tracker.advance(len(batch))
    found = found or [_nothing(predictor, 1 + len(left_out))]
    every_VNP = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
    return Predicted(
        base_NP=every_VNP[0],
        without_VNP=every_VNP[1:],
        labels=labels[0] if len(labels) == 1 else join_labels(labels),
        gates=gates,
    )


class _Batch(NamedTuple):
    """Predictions of some rows, with all experts first, then without each."""

    every_VNP: np.ndarray
    gates: Sequence[GateRecord]

    def __len__(self) -> int:
        """How many rows."""
        return self.every_VNP.shape[1]


def _batches(
    predictor: Predictor, chunk: EncodedData, left_out: Sequence[ExpertPlace], *, refill: bool
) -> Iterator[_Batch]:
    """Batches of a chunk in order; each core works on one, as mixes are small beside experts.

    Where one thread works on all of them (on a GPU, without the operators) it keeps all cores.
    """

    def predicted(rows: slice) -> _Batch:
        mixer = MixWithout(left_out, refill=refill)
        output = predictor.output(chunk, rows, return_gates=True, mixer=mixer)
        every = [output.logits_BT]
        every += [] if output.variants_VBT is None else output.variants_VBT.unbind(0)
        parts = [predictor.predictions(logits_BT, chunk, rows) for logits_BT in every]
        return _Batch(np.stack(parts), output.gates)

    alone = predictor.any_height and predictor.ranks == 1
    threads = scoring_threads(alone=alone)
    yield from in_order(predicted, predictor.batches(len(chunk)), threads, one_core_each=alone)


def _nothing(predictor: Predictor, variants: int) -> np.ndarray:
    return np.zeros((variants, 0, len(prediction_columns(predictor.tasks))), np.float32)
