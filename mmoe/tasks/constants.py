"""A few numbers of the config beside tensors of a device."""

from collections.abc import Sequence

import torch
from torch import Tensor


def constants(values: Sequence[float], like: Tensor) -> Tensor:
    """The values in `like`'s dtype and on its device; a GPU is not waited for.

    `torch.tensor(values, device="cuda")` and `new_tensor` would wait until all that was asked of
    the GPU before is done.

    Example:
        >>> import torch
        >>> from mmoe.tasks.constants import constants
        >>> constants([1, 2], torch.zeros(3))
        tensor([1., 2.])
    """
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)
