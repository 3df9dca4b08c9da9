"""Torch's random states, so that a resumed run draws what it would have drawn."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mmoe.checkpoint.stored_tensors import StoredTensors
from mmoe.parallel import rank, world_size
from mmoe.parallel.sharded_tensors import Shard


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Returns the CPU's random state and, for a run on a GPU, that of its device."""
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
        >>> from mmoe.checkpoint.random_state import random_states, restore_random_states
        >>> cpu = torch.device("cpu")
        >>> restore_random_states(random_states(cpu), cpu) is None
        True
    """
    torch.set_rng_state(saved["random_state"])
    note = _note("cuda" if "cuda_random_state" in saved else "cpu", device)
    if note is None and device.type == "cuda":
        torch.cuda.set_rng_state(saved["cuda_random_state"], device)
    return note


def _note(before: str, device: torch.device) -> str | None:
    if before == device.type:
        return None
    return (
        f"note: trained on {before} so far, on {device.type} from here on; sums round and "
        "dropout draws differently there, so it will not end with an undisturbed run's bits"
    )


def own_random_states(device: torch.device) -> dict[str, list[Shard]]:
    """Returns `random_states` as this rank's rows of tables that have a row for each rank."""
    return {
        name: [Shard(state[None], (world_size(), len(state)), (rank(), 0))]
        for name, state in random_states(device).items()
    }


def load_random_states(training: StoredTensors, device: torch.device, seed: int) -> str | None:
    """Puts back this rank's rows; from another number of ranks it starts from seed + rank.

    Returns:
        As `restore_random_states`.
    """
    names = [name for name in ("random_state", "cuda_random_state") if name in training.names()]
    found = {name: _own_row(training, name) for name in names}
    rows = {name: row for name, row in found.items() if row is not None}
    if len(rows) == len(names):
        return restore_random_states(rows, device)
    torch.manual_seed(seed + rank())
    return _note("cuda" if len(names) == 2 else "cpu", device)


def _own_row(training: StoredTensors, name: str) -> Tensor | None:
    """None where another number of ranks wrote them."""
    shape = training.shape(name)
    if len(shape) != 2 or shape[0] != world_size():
        return None
    state = torch.empty(shape[1], dtype=torch.uint8)
    training.load({name: [Shard(state[None], (shape[0], shape[1]), (rank(), 0))]}, all_names=False)
    return state
