"""`Shard`: a piece of a tensor that lies on several ranks."""

from typing import NamedTuple

from torch import Tensor


class Shard(NamedTuple):
    """What a rank holds of a global tensor.

    Attributes:
        tensor: The piece itself, not a copy: what is loaded into it is loaded into the model.
        shape: Of the global tensor.
        offsets: Where the piece begins in it, one number for each dimension.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
