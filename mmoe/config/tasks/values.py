"""Tasks whose label is a number, each with a loss of its own: Huber's, watch time, spend."""

from typing import ClassVar, Literal

from pydantic import Field

from mmoe.config.tasks.plain import NumberTask


class HuberTask(NumberTask):
    """A number with outliers: squared error near the label, absolute error far from it."""

    kind: Literal["huber"] = "huber"
    delta: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="the error from which on the loss grows linearly: in deviations of the label, "
        "with target: none in units of the label",
    )


class WatchTimeTask(NumberTask):
    """Seconds watched, 0 where nothing was: weighted logistic regression."""

    kind: Literal["watch_time"] = "watch_time"
    shifted: ClassVar[bool] = False
    negatives: Literal["unwatched", "all"] = Field(
        default="all",
        description="rows that count as negatives. unwatched: those of time 0, "
        "as in the paper, whose odds are the mean time only where few rows are watched; all: every "
        "row, so that the odds are the mean time itself",
    )

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says why no odds can be learnt: every row, or no row, is watched."""
        if highest <= 0:
            return "is 0 on all training rows with a label: nothing is watched"
        if lowest > 0 and self.negatives == "unwatched":
            return (
                "is above 0 on all training rows with a label, so the odds of kind watch_time have "
                "no end; set negatives: all"
            )
        return None


class ZilnTask(NumberTask):
    """A value that is mostly 0 and else has a long tail, such as spend: zero-inflated lognormal."""

    kind: Literal["ziln"] = "ziln"
    shifted: ClassVar[bool] = False

    @property
    def further(self) -> list[str]:
        """The chance of a value above 0."""
        return ["positive"]

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says that nothing is above 0."""
        return "is 0 on all training rows with a label" if highest <= 0 else None
