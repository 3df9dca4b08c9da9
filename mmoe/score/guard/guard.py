"""`Guard`: judges scores before they are published."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmoe.alarms import Distribution, TrainingColumns
from mmoe.config.scoring import Expectation
from mmoe.errors import Rejected
from mmoe.score.guard.counts import ScoreCounts
from mmoe.score.guard.summary import Summary, judged, summary_of

SummaryCallback = Callable[[Summary], None]


@dataclass(frozen=True)
class Guard:
    """What scores are compared with, and what is expected of them.

    Attributes:
        expectations: That have to hold.
        training: What the run knows of its training rows; None: nothing.
        predicted: How predictions of the test split were distributed.
        on_summary: Is given the summary before scores are rejected, or when they are published.
    """

    expectations: Sequence[Expectation]
    training: TrainingColumns | None
    predicted: dict[str, Distribution]
    on_summary: SummaryCallback | None = None

    def judge(self, counts: ScoreCounts, repeated: float | None = None) -> Summary:
        """Returns the figures of all rows, and what came of the expectations.

        Args:
            counts: Of all rows; of none, to see whether expectations name what there is.
            repeated: Share of the rows that earlier scores were made of.

        Raises:
            ValueError: An expectation names no column, or nothing that training knows.
        """
        summary = summary_of(counts, self.training, self.predicted, repeated)
        return replace(summary, findings=judged(summary, self.expectations))

    def conclude(
        self, summary: Summary, output: str, rejected: str | None, *, was_whole: bool = True
    ) -> None:
        """Shows the summary.

        Args:
            summary: Of scores that are published now, or put aside.
            output: Where they were to go.
            rejected: Where they lie if they are not as expected; None: they were published before.
            was_whole: Whether no earlier call had died while it replaced what was at `output`.

        Raises:
            Rejected: They are not.
        """
        if self.on_summary is not None:
            self.on_summary(summary)
        failed = summary.failed
        if not failed:
            return
        why = (
            f"{len(failed)} of {len(summary.findings)} expectations do not hold: "
            f"{'; '.join(finding.text() for finding in failed)}"
        )
        if rejected is None:
            raise Rejected(f"{output}: was published before, and {why}")
        before = (
            f"what was at {output} is as it was"
            if was_whole
            else f"what was at {output} had been replaced in part, by a call that died"
        )
        raise Rejected(f"{output}: not published, as {why}. The scores lie in {rejected}; {before}")
