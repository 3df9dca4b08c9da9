"""Torch's random states, so that a resumed run draws what it would have drawn."""

from collections.abc import Mapping

import torch
from torch import Tensor


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The CPU's state and, for a run on a GPU, that of its device."""
    states = {"random_state": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda_random_state"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(saved: Mapping[str, Tensor], device: torch.device) -> str | None:
    """Puts back what `random_states` gave.

    Args:
        saved: Also other tensors.
        device: Of the resumed run.

    Returns:
        One line for the user where the run was on another kind of device, else None.

    Example:
        >>> from mmoe.train.random_state import random_states, restore_random_states
        >>> cpu = torch.device("cpu")
        >>> restore_random_states(random_states(cpu), cpu) is None
        True
    """
    torch.set_rng_state(saved["random_state"])
    before = "cuda" if "cuda_random_state" in saved else "cpu"
    if before != device.type:
        return (
            f"note: trained on {before} so far, on {device.type} from here on; sums round and "
            "dropout draws differently there, so it will not end with an undisturbed run's bits"
        )
    if before == "cuda":
        torch.cuda.set_rng_state(saved["cuda_random_state"], device)
    return None
