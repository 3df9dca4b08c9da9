"""Says which settings of `parallel` do nothing here, so that none is ignored in silence."""

from torch import nn

from mmoe.config.parallel import ParallelConfig
from mmoe.parallel import dispatchers_of

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
    if parallel.exchange == "hierarchical" and not any(d.hosts.are_levels for d in dispatchers):
        hosts = dispatchers[0].hosts
        return [
            f"parallel.exchange: hierarchical is for several hosts of several ranks; here are "
            f"{hosts.count} of {hosts.size}, so rows go in one level (parallel.host_size)"
        ]
    return []
