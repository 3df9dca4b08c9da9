"""How a run is spread over ranks. One process ignores all of it."""

from typing import Literal

from pydantic import Field

from mmoe.config.base import Strict


class ParallelConfig(Strict):
    """What each rank holds, and how ranks talk (`torchrun --nproc-per-node N -m mmoe train …`)."""

    experts: Literal["auto", "replicated", "spread"] = Field(
        default="auto",
        description="replicated: every rank has all experts, and their gradients are added up; "
        "spread: each rank has some, and rows travel to them; auto: spread where the gates pick "
        "(top_k), replicated where every gate reads every expert",
    )
    wire_precision: Literal["same", "bf16"] = Field(
        default="same", description="what rows travel in to experts of other ranks, and back"
    )
    timeout_seconds: int = Field(
        default=1800,
        ge=1,
        le=86_400,
        description="a rank that has waited so long for another ends with an error",
    )
