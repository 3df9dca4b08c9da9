"""Labels of tasks of which one comes after the other: whether their probabilities compare."""

import numpy as np

from mmoe.config import RunConfig
from mmoe.datasets.rows.encoded import EncodedLabels


class OrderedCheck:
    """Checks labels, seen chunk by chunk, for whether a calibrator may compare their tasks.

    A task whose label is missing wherever the one before did not happen predicts a probability
    given that, which may well be the larger.
    """

    def __init__(self, config: RunConfig) -> None:
        self.names = [task.name for task in config.trained_tasks]
        self.pairs = config.model.transfer.calibrator(config.trained_tasks)[1]
        self.comparable_P = np.zeros(len(self.pairs), bool)

    def add(self, labels: EncodedLabels) -> None:
        """Looks at more training rows."""
        for p, (former, later) in enumerate(self.pairs):
            failed_N = labels.observed_NT[:, former] & (labels.labels_NT[:, former] == 0)
            self.comparable_P[p] |= bool((failed_N & labels.observed_NT[:, later]).any())

    def finish(self, origin: str) -> None:
        """Refuses a pair of which the later label exists only where the former happened."""
        for (former, later), comparable in zip(self.pairs, self.comparable_P, strict=True):
            if not comparable:
                first, then = self.names[former], self.names[later]
                raise ValueError(
                    f"{origin}: task {then!r} has labels only where {first!r} happened, so what it "
                    f"predicts is a probability given that, which model.transfer would hold below "
                    f"that of {first!r}; write 0 where it did not happen, or say observed_when: "
                    f"{first}, or model.transfer.calibrator_weight: 0"
                )
