"""Says which settings of `parallel` do nothing here, so that none is ignored in silence."""

from collections.abc import Sequence

from torch import nn

from mmoe.config.parallel import ParallelConfig
from mmoe.parallel import AllToAllDispatcher, dispatchers_of

_OF_SPREAD_EXPERTS = (
    "replicas",
    "experts_per_rank",
    "slices",
    "shadowed",
    "exchange",
    "chunks",
    "rebalance",
    "wire_precision",
)


def unused_settings(parallel: ParallelConfig, network: nn.Module) -> list[str]:
    """Returns a line for what was asked for, and does nothing with this network on these ranks.

    Args:
        parallel: Of the run.
        network: As it lies over the ranks.

    Example:
        >>> from torch import nn
        >>> from mmoe.config.parallel import ParallelConfig
        >>> [line] = unused_settings(ParallelConfig(chunks=2), nn.Linear(1, 1))
        >>> line[:54]
        'parallel.chunks: for spread experts; here every rank h'
    """
    dispatchers = dispatchers_of(network)
    if not dispatchers:
        usual = ParallelConfig()
        asked = [k for k in _OF_SPREAD_EXPERTS if getattr(parallel, k) != getattr(usual, k)]
        said = ", ".join(f"parallel.{key}" for key in asked)
        why = "for spread experts; here every rank has all of them, so nothing changes by it"
        return [f"{said}: {why} (parallel.experts: spread)"] if asked else []
    said = _waiting(dispatchers) if parallel.slices == "auto" else []
    if parallel.exchange == "hierarchical" and not any(d.hosts.are_levels for d in dispatchers):
        hosts = dispatchers[0].hosts
        said.append(
            f"parallel.exchange: hierarchical is for several hosts of several ranks; here are "
            f"{hosts.count} of {hosts.size}, so rows go in one level (parallel.host_size)"
        )
    return said


def _waiting(dispatchers: Sequence[AllToAllDispatcher]) -> list[str]:
    """A line where ranks have no expert, although experts were to be cut."""
    placements = [dispatcher.placement for dispatcher in dispatchers]
    idle = max(one.experts.count(()) for one in placements)
    return [
        f"parallel.slices: auto cuts experts of kind mlp with two widths, no norm and "
        f"output_activation: none; others are whole here, so {idle} rank(s) compute none"
    ] * (idle > 0)
