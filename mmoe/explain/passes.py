"""Passes over labelled rows: what is predicted with all experts, and without each."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from mmoe.config import RunConfig
from mmoe.config.tasks import prediction_columns
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedData, EncodedLabels, join_labels
from mmoe.explain.network import NetworkWithout
from mmoe.explain.places import ExpertPlace
from mmoe.models.network import MixtureNetwork
from mmoe.models.ranker import Ranker
from mmoe.predictor import Predictor
from mmoe.run.console import Tracker
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
        ranker: Whose network is a `MixtureNetwork`; all of its parts are read, none is changed.
        config: Of its run.
        rows: With labels.
        left_out: Experts.
        tracker: Told of every batch.
        refill: Gates that pick decide again.
    """
    network = ranker.network
    assert isinstance(network, MixtureNetwork)
    without = NetworkWithout(network, left_out, refill=refill)
    predictor = Predictor(Ranker(ranker.embeddings, without, ranker.num_dense, ranker.wide), config)
    gates, found = GateStatistics(), list[np.ndarray]()
    labels: list[EncodedLabels] = []
    with closing(rows.chunks()) as chunks:
        for chunk in chunks:
            assert chunk.labels is not None, "these rows carry labels"
            labels.append(chunk.labels)
            found.append(_of_chunk(predictor, chunk, len(left_out), gates, tracker))
    every_VNP = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
    return Predicted(
        base_NP=every_VNP[0],
        without_VNP=every_VNP[1:],
        labels=labels[0] if len(labels) == 1 else join_labels(labels),
        gates=gates,
    )


def _of_chunk(
    predictor: Predictor,
    chunk: EncodedData,
    variants: int,
    gates: GateStatistics,
    tracker: Tracker,
) -> np.ndarray:
    """With all experts first, then without each: [1 + V, rows, predictions]."""
    parts: list[np.ndarray] = []
    for rows, output in predictor.outputs(chunk, return_gates=True):
        count = rows.stop - rows.start
        gates.update(output.gates, count)
        every = [output.logits_BT]
        every += [] if output.variants_VBT is None else output.variants_VBT.unbind(0)
        parts.append(np.stack([predictor.predictions(logits, chunk, rows) for logits in every]))
        tracker.advance(count)
    if parts:
        return np.concatenate(parts, axis=1)
    return np.zeros((1 + variants, 0, len(prediction_columns(predictor.tasks))), np.float32)
