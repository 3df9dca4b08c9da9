"""Numbers of the config as tensors beside others on a device."""

from collections.abc import Sequence

import torch
from torch import Tensor


def constants(values: Sequence[float], like: Tensor) -> Tensor:
    """Returns values as a tensor of `like`'s dtype and device, without waiting for a GPU.

    `torch.tensor(values, device="cuda")` and `new_tensor` would wait until all that was asked of
    the GPU before is done.

    Example:
        >>> import torch
        >>> from mmoe.tasks.constants import constants
        >>> constants([1, 2], torch.zeros(3))
        tensor([1., 2.])
    """
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)
