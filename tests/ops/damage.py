"""`Damage`: something else in the place of an operator's argument."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

FLOATS = [torch.float32, torch.bfloat16, torch.float64]
DTYPES = [*FLOATS, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool]
ACTIVATIONS = ["none", "relu", "gelu", "silu"]
INTEGERS = [-(2**63), -(2**31), -2, -1, 0, 2**31, 2**63 - 1]
SIZES = [0, 1, 1, 2, 3, 3, 5, 17, 33]
INDICES = [-(2**31), -2, -1, *SIZES, 2**31 - 1]  # of which each size is one too many


class Damage:
    """Draws something else in the place of an argument; it may still fit."""

    def __init__(self, data):
        self.draw = data.draw

    def argument(self, value):
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self.draw(st.sampled_from(INTEGERS))
        if isinstance(value, torch.dtype):
            return self.draw(st.sampled_from(DTYPES))
        if isinstance(value, str):
            return self.draw(st.sampled_from(["tanh", "", "RELU", *ACTIVATIONS]))
        return self.tensors(value) if isinstance(value, list) else self.tensor(value)

    def tensors(self, value):
        kind = self.draw(st.sampled_from(["one", "one", "one", "longer", "shorter"]))
        if not value or kind == "longer":
            return [*value, *value[:1]]
        at = self.draw(st.integers(0, len(value) - 1))
        if kind == "shorter":
            return value[:at]
        return [self.tensor(t) if i == at else t for i, t in enumerate(value)]

    def tensor(self, t):
        kinds = ["dtype", "device", "dimensions", "size", "size", "layout", "number", "number"]
        return getattr(self, self.draw(st.sampled_from(kinds)))(t)

    def dtype(self, t):
        return t.to(self.draw(st.sampled_from(DTYPES)))

    def device(self, t):
        return t.to("meta")

    def dimensions(self, t):
        dim = self.draw(st.integers(0, t.dim()))
        if not t.dim() or self.draw(st.booleans()):
            return t.unsqueeze(dim)
        return t.flatten(0, dim - 1) if dim else t.reshape(-1)[:1].sum().to(t.dtype)

    def size(self, t):
        if not t.dim():
            return t
        dim = self.draw(st.integers(0, t.dim() - 1))
        size = self.draw(st.sampled_from([0, 1, t.shape[dim] + 1, max(t.shape[dim] - 1, 0)]))
        more = t.new_zeros(*t.shape[:dim], size, *t.shape[dim + 1 :])
        return torch.cat([t, more], dim).narrow(dim, 0, size)

    def layout(self, t):
        """The same numbers far apart or in another order, or one in the place of many."""
        if not t.dim() or self.draw(st.booleans()):
            return torch.stack([t, t], -1)[..., 0]
        dim = self.draw(st.integers(0, t.dim() - 1))
        if t.shape[dim] and self.draw(st.booleans()):
            return t.narrow(dim, 0, 1).expand_as(t)
        return t.transpose(0, dim).contiguous().transpose(0, dim)

    def number(self, t):
        if not t.numel() or t.device.type == "meta" or t.dtype == torch.bool:
            return t
        t, at = plain(t), self.draw(st.integers(0, t.numel() - 1))
        wrong = {torch.uint8: range(256), torch.int64: [*INDICES, *INTEGERS]}.get(t.dtype, INDICES)
        wrong = [torch.nan] if t.is_floating_point() else wrong
        t.view(-1)[at] = self.draw(st.sampled_from(wrong))
        return t


def flat(value):
    """The tensors in it."""
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in flat(part)]
    return [value] if isinstance(value, Tensor) else []


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(part) for part in value]
    if not isinstance(value, Tensor):
        return value
    return value.clone(memory_format=torch.contiguous_format)


def apart(value):
    """The same numbers, far apart."""
    if isinstance(value, list):
        return [apart(part) for part in value]
    return torch.stack([value, value], -1)[..., 0] if isinstance(value, torch.Tensor) else value


def without_values(value):
    if isinstance(value, list):
        return [without_values(part) for part in value]
    return value.to("meta") if isinstance(value, torch.Tensor) else value
