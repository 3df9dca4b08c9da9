"""What a short run leaves out: members of grids, and examples that Hypothesis draws.

Of a parametrised grid it keeps each value of each parameter, once.

A test of 19 cases, 3 dtypes and 4 activations has 228 members. What a case, a dtype or an
activation shows alone, 19 of them show, the dtypes and activations shared out evenly among the
cases. What only a certain pair of them shows is left to `make test-all`.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

is_short = True  # which tests/conftest.py says before it collects


def examples(most: int) -> int:
    """Number of examples to draw of a property: `most`, or a third of them in a short run."""
    return -(-most // 3) if is_short else most


def covering(members: Sequence[Sequence[Hashable]]) -> list[int]:
    """Positions of the members that together hold every value of every parameter.

    Greedy: always the member with the most values that none of the kept ones has; among equals the
    one whose values were kept least often, then the first. Where one parameter has as many values
    as there are members, all stay.

    Args:
        members: For each the value of every parameter.

    Example:
        >>> covering([(case, dtype) for case in "abc" for dtype in ("fp32", "bf16")])
        [0, 3, 4]
    """
    values = [list(enumerate(member)) for member in members]
    left = {value for member in values for value in member}
    times: Counter[tuple[int, Hashable]] = Counter()
    kept: list[int] = []

    def worth(place: int) -> tuple[int, int, int]:
        mine = values[place]
        return len(left.intersection(mine)), -sum(times[value] for value in mine), -place

    while left:
        best = max(set(range(len(members))).difference(kept), key=worth)
        kept.append(best)
        times.update(values[best])
        left.difference_update(values[best])
    return sorted(kept)
