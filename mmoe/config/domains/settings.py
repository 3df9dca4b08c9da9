"""The section `model.domains`."""

from typing import Literal

from pydantic import Field

from mmoe.config.base import Strict

MOST_DOMAINS = 1024  # each has gates; a column with more values is an id, for a feature


class DomainsConfig(Strict):
    """Which domain a row is of, and what each domain has of its own."""

    column: str = Field(
        min_length=1,
        description="whose values are the domains (scenes, markets, surfaces): each has gates of "
        f"its own, which its rows alone ask; of ids or text, {MOST_DOMAINS:,} values at most",
    )
    towers: Literal["shared", "own"] = Field(
        default="shared", description="one tower a task, or one for each task and domain"
    )
    unseen: Literal["mean_gate", "refuse"] = Field(
        default="mean_gate",
        description="rows whose domain is empty, or which no training row has. mean_gate: they are "
        "mixed by the mean of the domains' gates; refuse: an error names the row",
    )
