"""What rows say to gates beside what these read."""

from typing import NamedTuple

from torch import Tensor

from mmoe.mixture.domains import RowDomains


class RowAsks(NamedTuple):
    """What rows say to the gates beside what these read.

    Attributes:
        asked_BG: Bool, the gates that each row asks; others pick and weigh nothing, and have no
            vote. None: every row asks all.
        domains: Of the rows, for gates that domains have of their own; None: they have none.
    """

    asked_BG: Tensor | None = None
    domains: RowDomains | None = None
