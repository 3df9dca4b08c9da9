"""`D2QTask`: watch time without the duration's share in it."""

from typing import Any, Literal

from pydantic import Field

from mmoe.config.tasks.base import TaskConfig


class D2QTask(TaskConfig):
    """Seconds watched, learnt as a quantile among videos of about the same duration (D2Q)."""

    kind: Literal["d2q"] = "d2q"
    duration: str = Field(
        min_length=1, description="column of the video's duration, above 0; scoring reads it too"
    )
    groups: int = Field(
        default=30,
        ge=1,
        le=1000,
        description="groups of durations with about as many training rows each, at most",
    )

    @property
    def inputs(self) -> list[str]:
        """The duration."""
        return [self.duration]

    @property
    def meaning(self) -> dict[str, Any]:
        """What its quantiles are taken within."""
        return {"duration": self.duration, "groups": self.groups}

    def untrainable(self, lowest: float, highest: float) -> str | None:
        """Says that nothing is watched."""
        return "is 0 on all training rows with a label: nothing is watched" if not highest else None
