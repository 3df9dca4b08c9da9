"""Layers and activations for scoring: a row's bits do not depend on its batch.

On the CPU torch computes the last few numbers of a tensor, those that fill no vector register, by
another formula than the rest. Of 210 tensors of odd shapes `torch.sigmoid` and `F.silu` changed
bits of a moved row in 50 to 58, `F.gelu` in 1 (torch 2.13, float32), and of 100 tensors `F.mish`,
`F.elu`, `F.selu`, `F.celu`, `F.softplus` and GELU by tanh in 81 to 99; `exp`, `expm1`, `erf`,
`tanh`, `logsigmoid`, softmax and layer normalisation in none, so the forms here are made of those.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.ops import FLOAT_DTYPES, dense_mm, extension_status

# Without the extension products are torch's. MKL sums the inner products of narrow fp32 results in
# an order that depends on the row's place: in torch 2.13 with 2 to 11 columns a shuffled batch gave
# other last bits in 12 to 24 of 54 shapes, with one column in those of odd height, with 12 to 256
# columns in none of 1,200. With a margin, and a whole number of vector registers:
_STABLE_WIDTH = 16

HAS_KERNELS = extension_status().built

_TORCHS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def stable_sigmoid(x: Tensor) -> Tensor:
    """Computes `1 / (1 + exp(−x))` with bits that depend on x alone.

    Example:
        >>> import torch
        >>> stable_sigmoid(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """
    if x.device.type != "cpu":
        return x.sigmoid()
    # Not 1 / (1 + exp(−x)): its gradient is NaN where exp(−x) is infinite.
    return F.logsigmoid(_wide(x)).exp().to(x.dtype)


def activate(x: Tensor, activation: str, *, training: bool) -> Tensor:
    """Applies ReLU, exact GELU or SiLU: torch's in training, else `stable_activation`."""
    return _TORCHS[activation](x) if training else stable_activation(x, activation)


def stable_activation(x: Tensor, activation: str) -> Tensor:
    """Applies ReLU, exact GELU or SiLU with bits that depend on x alone.

    Args:
        x: Of any shape and float type.
        activation: `relu`, `gelu` or `silu`.

    Returns:
        `max(x, 0)`, `x · Φ(x)` or `x · σ(x)`, in x's dtype.

    Example:
        >>> import torch
        >>> stable_activation(torch.tensor([-1.0, 1.0]), "silu")
        tensor([-0.2689,  0.7311])
    """
    if activation == "relu" or x.device.type != "cpu":
        return _TORCHS[activation](x)
    wide = _wide(x)
    # Of erf and logsigmoid, which treat the end of a tensor as the rest; F.gelu and F.silu do not
    if activation == "gelu":
        return (0.5 * wide * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)
    return (wide * F.logsigmoid(wide).exp()).to(x.dtype)


def stable_linear(x: Tensor, weight_HD: Tensor, bias_H: Tensor | None = None) -> Tensor:
    """Computes `x Wᵀ + b` where a row's bits depend on that row alone.

    Meant for scoring: a row's score must not depend on its batch mates. On the CPU it is this
    library's own product. Where the extension is not built, torch's, with columns of zeros beside
    narrow ones: then shuffling the rows of a tall batch changes no bit, but another height may.

    Args:
        x: `[..., D]`.
        weight_HD: Weights, in x's dtype.
        bias_H: Biases.

    Returns:
        `[..., H]`; under autocast in its type, as `F.linear`.

    Example:
        >>> import torch
        >>> stable_linear(torch.ones(3, 2), torch.ones(4, 2)).shape
        torch.Size([3, 4])
    """
    if x.device.type != "cpu" or not HAS_KERNELS:
        return padded_linear(x, weight_HD, bias_H)
    tensors = [x, weight_HD] if bias_H is None else [x, weight_HD, bias_H]
    tensors = [cast_for_autocast(tensor) for tensor in tensors]
    if not _kernel_takes(*tensors):
        return F.linear(x, weight_HD, bias_H)
    rows_BD = tensors[0].reshape(x.shape[:-1].numel(), x.shape[-1])
    weight_1DH, *bias_1H = tensors[1].t().unsqueeze(0), *(b.unsqueeze(0) for b in tensors[2:])
    y_BH = dense_mm(rows_BD, weight_1DH, *bias_1H)[0]
    if y_BH.requires_grad:
        # The operator keeps its result for the gradient, and the next layer may write into this.
        y_BH = y_BH.clone()
    return y_BH if x.dim() == 2 else y_BH.view(*x.shape[:-1], y_BH.shape[1])


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Applies an `nn.Linear`: in training by torch, else so that rows do not feel each other.

    Example:
        >>> apply_linear(torch.nn.Linear(2, 3), torch.zeros(4, 2)).shape
        torch.Size([4, 3])
    """
    product = F.linear if layer.training else stable_linear
    return product(x, layer.weight, layer.bias)


def padded_linear(x: Tensor, weight_HD: Tensor, bias_H: Tensor | None = None) -> Tensor:
    """Computes `x Wᵀ + b` by torch, narrow fp32 columns padded with zeros."""
    width = weight_HD.shape[0]
    if width >= _STABLE_WIDTH or weight_HD.dtype != torch.float32:
        return F.linear(x, weight_HD, bias_H)
    missing = _STABLE_WIDTH - width
    weight_HD = F.pad(weight_HD, (0, 0, 0, missing))
    bias_H = None if bias_H is None else F.pad(bias_H, (0, missing))
    # As wide as _STABLE_WIDTH, a product sums each row in one order, wherever the row stands
    return F.linear(x, weight_HD, bias_H)[..., :width]


class StableFunctions(TorchFunctionMode):
    """Runs other people's modules with the stable layers of this file.

    While it is entered, `F.linear` is `stable_linear`, and sigmoid, SiLU, GELU, Mish, ELU, CELU,
    SELU and softplus are stable forms, in whatever module they are called (`nn.Linear` calls
    `F.linear`). All else stays as it is: `x.sigmoid_()` too, whole numbers, subclasses of tensors.

    Example:
        >>> import torch
        >>> with StableFunctions():
        ...     torch.nn.Linear(2, 3)(torch.ones(4, 2)).shape
        torch.Size([4, 3])
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch in the place of each of its functions."""
        # Subclasses of tensors have functions of their own; those in Python name plain tensors too
        plain = all(kind in (Tensor, nn.Parameter) for kind in types)
        form, keys = _FORMS.get(func) if plain else None, dict(kwargs or {})
        x = args[0] if args else None
        if form is None or not isinstance(x, Tensor) or not x.is_floating_point() or "out" in keys:
            return func(*args, **keys)
        if not keys.pop("inplace", False):
            return form(*args, **keys)
        # Whoever asks for it goes on with the input itself, whose old numbers the gradient needs
        return x.copy_(form(x.clone(), *args[1:], **keys))


def _gelu(input: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return stable_activation(input, "gelu")
    wide = _wide(input)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return (0.5 * wide * (1 + inner.tanh())).to(input.dtype)


def _softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    wide = _wide(input)
    soft = -F.logsigmoid(-beta * wide) / beta
    return torch.where(beta * wide > threshold, wide, soft).to(input.dtype)


def _mish(input: Tensor) -> Tensor:
    wide = _wide(input)
    return (wide * _softplus(wide).tanh()).to(input.dtype)


def _elu(input: Tensor, alpha: float = 1.0, width: float = 1.0) -> Tensor:
    wide = _wide(input)
    # Below 0 alone: where exp is infinite the gradient would be NaN
    low = alpha * torch.expm1(wide.clamp(max=0) / width)
    return torch.where(wide > 0, wide, low).to(input.dtype)


def _celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    return _elu(input, alpha, alpha)


def _selu(input: Tensor) -> Tensor:
    # Klambauer et al., "Self-normalizing neural networks" (2017), equation 2
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return (scale * _elu(_wide(input), alpha)).to(input.dtype)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return stable_linear(input, weight, bias)


_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.gelu: _gelu,
    F.silu: partial(stable_activation, activation="silu"),
    F.mish: _mish,
    F.elu: _elu,
    F.celu: _celu,
    F.selu: _selu,
    F.softplus: _softplus,
    torch.celu: _celu,
    torch.selu: _selu,
    torch.sigmoid: stable_sigmoid,
    torch.special.expit: stable_sigmoid,
    Tensor.sigmoid: stable_sigmoid,
}


def _kernel_takes(x: Tensor, weight_HD: Tensor, *bias_H: Tensor) -> bool:
    """Returns whether the operator takes these tensors; `F.linear` computes or refuses others."""
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return False
    return (
        x.dtype in FLOAT_DTYPES
        and x.dim() > 0
        and weight_HD.dim() == 2
        and x.shape[-1] == weight_HD.shape[1]
        and all(bias.shape == weight_HD.shape[:1] for bias in bias_H)
        and all(
            (tensor.dtype, tensor.device, tensor.layout) == (x.dtype, x.device, torch.strided)
            for tensor in (x, weight_HD, *bias_H)
        )
    )


def _wide(x: Tensor) -> Tensor:
    """Narrow types would be rounded after every step."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
