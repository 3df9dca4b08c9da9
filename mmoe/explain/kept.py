"""What is left of a checkpoint's tensors without some experts."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mmoe.explain.places import ExpertPlace, levels_of
from mmoe.mixture import MixedExperts, MultiGateMixture
from mmoe.mixture.axes import axes_of
from mmoe.mixture.experts.pool import Pool
from mmoe.models.network import MixtureNetwork

# Of a checkpoint: what scores, the weights behind an average, moments by `PARAMETER/MOMENT`
_PARTS = ("network", "raw", "optimizer")


class KeptExperts:
    """Cuts experts out of tensors, whatever part of a checkpoint they are.

    Args:
        network: With all experts.
        gone: Those that go.

    Example:
        >>> import torch
        >>> from mmoe.config import ModelConfig
        >>> from mmoe.explain.places import places_of
        >>> from mmoe.models import build_network
        >>> network = build_network(ModelConfig(num_experts=3), 20, ["click"])
        >>> kept = KeptExperts(network, places_of(network)[:1])
        >>> bias = {"network.levels.0.mixture.experts.biases.0": torch.tensor([[1], [2], [3]])}
        >>> list(kept.of(bias).values())[0].tolist()
        [[2], [3]]
    """

    def __init__(self, network: MixtureNetwork, gone: Sequence[ExpertPlace]) -> None:
        self._kept: dict[str, tuple[int, Tensor]] = {}
        self._prefixes: dict[str, str] = {}
        for number, level in enumerate(levels_of(network)):
            mine = {place.expert for place in gone if place.level == number}
            if mine:
                self._add(f"levels.{number}.mixture.", level.mixture, mine)

    def of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the same tensors with the entries of experts that stay, under their names."""
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parameter, moment = rest, ""
            if part == "optimizer":
                parameter, _, moment = rest.rpartition("/")
            if part not in _PARTS or parameter not in self._kept:
                found[name] = tensor
                continue
            dim, entries = self._kept[parameter]
            if len(entries):  # else a kind of experts is gone
                left = tensor.index_select(dim, entries) if tensor.dim() else tensor
                new = f"{part}.{self._renamed(parameter)}"
                found[f"{new}/{moment}" if moment else new] = left
        return found

    def _add(self, prefix: str, mixture: MultiGateMixture, gone: set[int]) -> None:
        for name, axes in axes_of(mixture, {"experts": range(mixture.num_experts)}).items():
            dim = axes.dim("experts")
            if dim is not None:
                left = [i for i, e in enumerate(axes.entries("experts")) if e not in gone]
                self._kept[prefix + name] = (dim, torch.tensor(left, dtype=torch.int64))
        if isinstance(mixture.experts, MixedExperts):
            self._rename_pools(f"{prefix}experts.", mixture.experts, gone)

    def _rename_pools(self, prefix: str, pool: MixedExperts, gone: set[int]) -> None:
        """Pools of kinds that stay are numbered anew; one alone stands for itself."""
        first, staying = 0, list[int]()
        for number, part in enumerate(pool.pools):
            assert isinstance(part, Pool)
            mine = set(range(first, first + len(part)))
            first += len(mine)
            if mine - gone:
                staying.append(number)
        for place, number in enumerate(staying):
            new = prefix if len(staying) == 1 else f"{prefix}pools.{place}."
            self._prefixes[f"{prefix}pools.{number}."] = new

    def _renamed(self, parameter: str) -> str:
        for old, new in self._prefixes.items():
            if parameter.startswith(old):
                return new + parameter.removeprefix(old)
        return parameter
