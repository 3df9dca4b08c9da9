"""Puts tensors of an earlier run into tensors with more entries, fewer, or in other places."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mmoe.train.warm_start.places import NEW, TensorSource

# Adam's second moments. Zeros would make a new entry's first steps several times too large, because
# the correction for that (by the number of steps) is over in a tensor that has been trained.
_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")


def fits(own: Sequence[int], old: Sequence[int], source: TensorSource) -> bool:
    """Returns whether shapes differ in mapped dimensions alone, with no place beyond `old`."""
    if len(own) != len(old):
        return False
    for dim, (size, old_size) in enumerate(zip(own, old, strict=True)):
        places = source.places.get(dim)
        if places is None and size != old_size:
            return False
        if places is not None and (len(places) != size or int(places.max(initial=NEW)) >= old_size):
            return False
    return True


def moved(own: Tensor, old: Tensor, source: TensorSource, new_input: float = 0.0) -> Tensor:
    """Returns `old`'s entries in their new places, and `own`'s where there are none.

    Of domains that are new it is the mean of the earlier ones.

    Args:
        own: Values of entries that are new.
        old: The earlier tensor, on the CPU; `fits`.
        source: Where the entries stood.
        new_input: Value of kept gates and experts for new inputs.

    Example:
        >>> source = TensorSource("w", {1: np.array([1, NEW])}, input_dim=1)
        >>> moved(torch.ones(1, 2), torch.tensor([[5.0, 6.0]]), source).tolist()
        [[6.0, 0.0]]
    """
    if not source.places:
        return old.clone()
    places = {dim: source.places.get(dim, np.arange(size)) for dim, size in enumerate(own.shape)}
    if source.domain_dim is not None:  # the mean stands behind them, for those that are new
        dim, count = source.domain_dim, old.shape[source.domain_dim]
        old = torch.cat([old, old.mean(dim, keepdim=True)], dim)
        places[dim] = np.where(places[dim] == NEW, count, places[dim])
    kept = {dim: np.flatnonzero(place != NEW) for dim, place in places.items()}
    result = own.detach().cpu().clone().numpy()
    if source.input_dim is not None:
        everything = {**kept, source.input_dim: np.arange(own.shape[source.input_dim])}
        result[np.ix_(*everything.values())] = new_input
    olds = [place[kept[dim]] for dim, place in places.items()]
    result[np.ix_(*kept.values())] = old.numpy()[np.ix_(*olds)]
    return torch.from_numpy(result)


def moved_moments(
    own: Tensor, moments: Mapping[str, Tensor], source: TensorSource
) -> dict[str, Tensor]:
    """Returns the optimizer state of a parameter that kept some of its entries.

    New entries start with no first moment, and with the mean second moment of the kept ones.

    Args:
        own: The parameter.
        moments: Its earlier state by key; what has not the parameter's shape (the number of steps)
            is kept as it is.
        source: Where the parameter's entries stood.
    """
    result = {}
    for key, old in moments.items():
        if old.dim() == 0:
            result[key] = old.clone()
            continue
        fill = float(old.mean()) if key in _SECOND_MOMENTS else 0.0
        result[key] = moved(torch.full(own.shape, fill, dtype=old.dtype), old, source, fill)
    return result
