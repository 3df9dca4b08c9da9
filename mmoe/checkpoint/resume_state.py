"""What resuming needs beside weights: random numbers, and an optimizer as tensors with names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mmoe.checkpoint.folder import StoredTensors
from mmoe.parallel import Shard, rank, world_size
from mmoe.process_settings import LENT

_CPU = torch.device("cpu")


class RandomState:
    """The states of torch's generators as one run finds them, whatever else the process draws.

    Initialisers and dropout know torch's global generators alone. The run puts its states there
    while it draws, and takes them away afterwards.

    Args:
        device: Of the run: on a GPU its generator's state in addition to the CPU's.
        seed: To start from; None: the states that the global generators have now.

    Example:
        >>> import torch
        >>> from mmoe.checkpoint.resume_state import RandomState
        >>> ours, theirs = RandomState(seed=1), RandomState(seed=1)
        >>> with ours.drawing():
        ...     x = torch.rand(2)
        >>> y = torch.rand(2)
        >>> with theirs.drawing():
        ...     z = torch.rand(2)
        >>> torch.equal(x, z)
        True
    """

    def __init__(self, device: torch.device = _CPU, *, seed: int | None = None) -> None:
        self.device = device
        self.states = _global_states(device)
        if seed is not None:
            self.seed(seed)

    def seed(self, seed: int) -> None:
        """Starts again from `seed`, as `torch.manual_seed` does."""
        devices = {"random_state": _CPU, "cuda_random_state": self.device}
        self.states = {
            name: torch.Generator(devices[name]).manual_seed(seed).get_state()
            for name in self.states
        }

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Encloses what draws: all numbers come from this run's states, and no other's change."""
        devices = [self.device] if self.device.type == "cuda" else []
        with LENT, torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self.states["random_state"])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self.states["cuda_random_state"], self.device)
            try:
                yield
            finally:
                self.states = _global_states(self.device)

    def shards(self) -> dict[str, list[Shard]]:
        """Returns the states as this rank's rows of tables that have a row for each rank."""
        return {
            name: [Shard(state[None], (world_size(), len(state)), (rank(), 0))]
            for name, state in self.states.items()
        }

    def load(self, training: StoredTensors, seed: int) -> str | None:
        """Continues from this rank's rows; from another number of ranks' with seed + rank.

        Returns:
            One line for the user where the run was on another kind of device, else None.
        """
        names = [name for name in ("random_state", "cuda_random_state") if name in training]
        shapes = [training.shape(name) for name in names]
        if all(len(shape) == 2 and shape[0] == world_size() for shape in shapes):
            own: dict[str, Tensor] = {}
            for name, shape in zip(names, shapes, strict=True):
                own[name] = torch.empty(shape[1], dtype=torch.uint8)
                row = Shard(own[name][None], tuple(shape), (rank(), 0))
                training.load({name: [row]}, all_names=False)
            return self.restore(own)
        self.seed(seed + rank())  # another number of ranks wrote them
        return self._note("cuda_random_state" in names)

    def restore(self, saved: Mapping[str, Tensor]) -> str | None:
        """Continues from the `states` of another one, or from as much as both devices have.

        Returns:
            As `load`.
        """
        self.states = {name: saved.get(name, state) for name, state in self.states.items()}
        return self._note("cuda_random_state" in saved)

    def _note(self, from_gpu: bool) -> str | None:
        before = "cuda" if from_gpu else "cpu"
        if before == self.device.type:
            return None
        return (
            f"note: trained on {before} so far, on {self.device.type} from here on; sums round and "
            "dropout draws differently there, so it will not end with an undisturbed run's bits"
        )


def _global_states(device: torch.device) -> dict[str, Tensor]:
    states = {"random_state": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda_random_state"] = torch.cuda.get_rng_state(device)
    return states


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
