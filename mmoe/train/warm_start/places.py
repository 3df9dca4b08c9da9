"""Where entries of a tensor stood in an earlier one: places by name, along its dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

NewExperts = Literal["fresh", "copy"]
NEW = -1  # the place of an entry that the earlier network did not have


@dataclass(frozen=True)
class TensorSource:
    """Where the entries of a tensor stood in an earlier one, dimension by dimension.

    Attributes:
        name: In the earlier network; None: there was none.
        places: By dimension, for each entry its earlier place or `NEW`; other dimensions are equal.
        input_dim: The dimension of inputs, if there is one. Kept gates and experts read new inputs
            with weights of zero, so that they compute what they did.
        domain_dim: That of domains, if there is one; new ones begin as the mean of the earlier ones
            does, by which their rows were scored before.
    """

    name: str | None
    places: dict[int, np.ndarray] = field(default_factory=dict)
    input_dim: int | None = None
    domain_dim: int | None = None

    @property
    def carries(self) -> bool:
        """Whether any of its entries were in the earlier network."""
        kept = all((place != NEW).any() for place in self.places.values() if len(place))
        return self.name is not None and (kept or self.domain_dim is not None)


def places_of(now: Sequence[str], before: Sequence[str]) -> np.ndarray:
    """Returns for each name its earlier place, or `NEW`.

    Example:
        >>> places_of(["click", "like", "buy"], ["click", "buy"]).tolist()
        [0, -1, 1]
    """
    places = {name: place for place, name in enumerate(before)}
    return np.array([places.get(name, NEW) for name in now], np.int64)


def expert_places(now: Sequence[str], before: Sequence[str], new_experts: NewExperts) -> np.ndarray:
    """Returns earlier places of experts; with `copy`, new ones copy their owner's kept ones.

    Example:
        >>> now = ["click expert 1", "click expert 2", "shared expert 1"]
        >>> expert_places(now, ["click expert 1", "shared expert 1"], "copy").tolist()
        [0, 0, 1]
    """
    places = places_of(now, before)
    if new_experts == "fresh":
        return places
    filled = places.copy()
    owners = [name.rpartition(" ")[0] for name in now]
    for owner in set(owners):
        mine = [e for e, name in enumerate(owners) if name == owner]
        kept = [places[e] for e in mine if places[e] != NEW]
        fresh = [e for e in mine if places[e] == NEW]
        for turn, e in enumerate(fresh if kept else []):
            filled[e] = kept[turn % len(kept)]
    return filled


def places_within(experts: np.ndarray, own: range, old: range) -> np.ndarray:
    """The places of a kind's experts among the earlier ones of that kind."""
    places = experts[own.start : own.stop]
    return np.where((places >= old.start) & (places < old.stop), places - old.start, NEW)
