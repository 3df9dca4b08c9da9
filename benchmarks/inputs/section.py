"""`Section`: one comparison, which measures some of the JSON keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.racing.results import Target


@dataclass(frozen=True)
class Measured:
    """What a section found.

    Attributes:
        values: JSON key → number.
        details: What stands behind them: numbers of each seed, the oracle's among them.
    """

    values: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """One comparison.

    Attributes:
        name: For `--only`.
        targets: JSON key → what it should reach; keys without a target are None.
        measure: Called with the seeds, and with what prints a line of progress.
    """

    name: str
    targets: Mapping[str, Target | None]
    measure: Callable[[Sequence[int], Callable[[str], None]], Measured]
