"""Layers with dimensions of size 1, and tensors whose strides there say nothing."""

from torch import Tensor


def restrided(tensor: Tensor) -> Tensor:
    """The same contiguous tensor with other strides in its dimensions of size 1, as torch allows.

    Such come from `transpose`, `as_strided` and slices; nobody may compute with them.
    """
    strides = [1 if n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    result = tensor.as_strided(tensor.shape, strides)
    assert result.is_contiguous()
    return result


# Rows of each expert, input and output width
THIN_LAYERS = {
    "input width 1": ([6, 0, 3], 1, 24),
    "output width 1": ([6, 0, 3], 24, 1),
    "one row": ([0, 1, 0], 16, 24),
    "one expert": ([7], 16, 24),
    "one of all": ([1], 1, 1),
}
