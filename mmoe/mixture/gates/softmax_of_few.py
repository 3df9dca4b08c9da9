"""A softmax over few numbers, for very many rows: of all gates of all rows over their experts."""

import torch
from torch import Tensor

from mmoe.ops.row_softmax import row_softmax

# Less than fill a vector of the widest registers: from there on torch is faster
_FEW = 15


def softmax_of_few(x: Tensor) -> Tensor:
    """Computes the softmax over the last dimension.

    On a CPU torch takes one row after the other, which leaves vectors half empty where a row has
    few numbers: with 64 gates of 8 experts on 4,096 rows 28 ms, and 11 ms backward, on a core where
    this takes 1.4 and 1.6. Here a vector holds numbers of many rows (`row_softmax`). A row's bits
    depend on that row alone.

    Args:
        x: `[..., N]`, any float type.

    Returns:
        As `x.softmax(-1)`.

    Example:
        >>> import torch
        >>> from mmoe.mixture.gates.softmax_of_few import softmax_of_few
        >>> softmax_of_few(torch.zeros(3, 2, 4))[0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    plain = torch.compiler.is_compiling() or type(x) is not Tensor
    if plain or x.device.type != "cpu" or not 0 < x.shape[-1] <= _FEW or x.dtype.itemsize < 4:
        return x.softmax(-1)
    return row_softmax(x.reshape(-1, x.shape[-1])).view(x.shape)
