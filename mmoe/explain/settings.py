"""What an explanation is asked for."""

import math
from dataclasses import dataclass
from typing import Literal

SplitName = Literal["test", "validation"]
# Of AUC, NE and the like: below what anybody would notice, above the noise of rounding
TOLERANCE = 0.0002


@dataclass(frozen=True, kw_only=True)
class ExplainSettings:
    """What to find out.

    Attributes:
        tolerance: How much worse a metric may become before an expert counts as needed: of AUC,
            NE and accuracy in their own units, of errors with a unit as a share of their value.
        gradients: Also which tasks help or hurt each other on the shared layers.
        features: Also how much each task loses where a feature is shuffled.

    Raises:
        ValueError: The tolerance is no number of 0 or more.
    """

    tolerance: float = TOLERANCE
    gradients: bool = False
    features: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(
                f"--tolerance: expected a number of 0 or more, such as {TOLERANCE}, got "
                f"{self.tolerance}"
            )
