"""The moments of an optimizer as tensors with names, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def flatten_optimizer(optimizer: torch.optim.Optimizer, network: nn.Module) -> dict[str, Tensor]:
    """Returns an optimizer's moments as plain tensors named `PARAMETER/MOMENT`."""
    names = _names(optimizer, network)
    return {
        f"{names[index]}/{key}": torch.as_tensor(value)
        for index, moments in optimizer.state_dict()["state"].items()
        for key, value in moments.items()
    }


def unflatten_optimizer(
    optimizer: torch.optim.Optimizer, network: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Puts back what `flatten_optimizer` took."""
    names = _names(optimizer, network)
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        state.setdefault(names.index(name), {})[key] = tensor
    content = optimizer.state_dict()
    content["state"] = state
    optimizer.load_state_dict(content)


def _names(optimizer: torch.optim.Optimizer, network: nn.Module) -> list[str]:
    """The parameters' names in the order of `state_dict`: group by group."""
    names = {id(weight): name for name, weight in network.named_parameters()}
    return [names[id(weight)] for group in optimizer.param_groups for weight in group["params"]]
