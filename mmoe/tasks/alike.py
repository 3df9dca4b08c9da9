"""Towers of one form, computed together: a layer of all of them is one call.

A layer's matrices are put into one tensor in every call, which is small beside the rows, so that
each tower keeps its own parameters: they are stored, frozen, averaged and transferred one by one.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.mixture import MLP
from mmoe.mixture.batch_invariant import HAS_KERNELS
from mmoe.mixture.multi_gate import Unmixed
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.ops import FLOAT_DTYPES, accumulate_dtype, dense_mm, mixed_towers
from mmoe.tasks.tower import Tower


def logits_of_towers(
    towers: Sequence[nn.Module], inputs: Sequence[Tensor] | Tensor
) -> list[Tensor]:
    """Computes what each tower gives: towers of one form together, others one by one.

    Args:
        towers: Modules that map `h_BO` to `logit_B`, or to several columns.
        inputs: `h_BO` of each, or one `h_BTO`.

    Returns:
        T tensors.

    Example:
        >>> import torch
        >>> from mmoe.tasks import Tower
        >>> from mmoe.tasks.alike import logits_of_towers
        >>> towers = [Tower(16, [8]), Tower(16, [8]), torch.nn.Flatten(0)]
        >>> inputs = [*torch.zeros(2, 4, 16), torch.ones(4)]
        >>> [len(logit_B) for logit_B in logits_of_towers(towers, inputs)]
        [4, 4, 4]
    """
    whole = inputs if isinstance(inputs, Tensor) else None
    listed = list(inputs.unbind(1) if isinstance(inputs, Tensor) else inputs)
    found: dict[int, Tensor] = {}
    for form, numbers in _by_form(towers, listed).items():
        alone = len(numbers) == 1 and towers[numbers[0]].training
        # In evaluation one is computed as several are: others may come, and must change no bit
        if form is None or alone:
            found |= {t: towers[t](listed[t]) for t in numbers}
            continue
        chosen = [towers[t] for t in numbers]
        alike = [tower for tower in chosen if isinstance(tower, Tower)]
        # A task's rows in one tensor: so are their gradients then, and nothing copies them together
        if whole is not None and len(numbers) == len(towers):
            read = whole.transpose(0, 1)
        else:
            read = [listed[t] for t in numbers]
        found |= zip(numbers, _logits_of_alike(alike, read).unbind(1), strict=True)
    return [found[t] for t in range(len(towers))]


def logits_of_unmixed(towers: Sequence[nn.Module], unmixed: Unmixed) -> Tensor | None:
    """Computes `logits_BT` of towers of one form and one hidden layer, each on its gate's mix.

    A row gets the bits that it gets from mixes that were made. None: towers are others, or rows do
    not lie in a CPU's memory.

    Args:
        towers: As many as there are gates.
        unmixed: What the gates would mix.

    Example:
        >>> import torch
        >>> from mmoe.mixture.multi_gate import Unmixed
        >>> from mmoe.tasks import Tower
        >>> from mmoe.tasks.alike import logits_of_unmixed
        >>> unmixed = Unmixed([torch.zeros(4, 16)], torch.ones(4, 2, 1))
        >>> logits_of_unmixed([Tower(16, [8]), torch.nn.Flatten(0)], unmixed)
    """
    y_BO = unmixed.y[0]
    if len(towers) != unmixed.weights_BGE.shape[1] or y_BO.device.type != "cpu":
        return None
    forms = {_form(tower, y_BO) for tower in towers}
    alike = [tower for tower in towers if isinstance(tower, Tower)]
    # As of towers that are given mixes, one alone that trains is computed by torch
    if len(forms) != 1 or None in forms or (len(alike) == 1 and alike[0].training):
        return None
    mlp = alike[0].mlp
    if len(mlp.layers) != 1 or (mlp.dropout and mlp.training) or _dtype_read(y_BO) != y_BO.dtype:
        return None
    weight_TOH, bias_TH = _stacked([tower.mlp.layers[0] for tower in alike])
    head_TH1, head_bias_T1 = _stacked([tower.logit for tower in alike])
    head = head_TH1.squeeze(2), head_bias_T1.squeeze(1)
    return mixed_towers(*unmixed, weight_TOH, bias_TH, *head, mlp.activation)


def _by_form(towers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> dict[Hashable, list[int]]:
    """Numbers of towers by what has to be equal to compute them together; None: nothing is."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for number, (tower, h_BO) in enumerate(zip(towers, inputs, strict=True)):
        found[_form(tower, h_BO)].append(number)
    return found


def _form(tower: nn.Module, h_BO: Tensor) -> Hashable:
    if type(tower) is not Tower or not HAS_KERNELS:
        return None
    if tower.num_logits != 1 or tower.constants_J is not None:
        return None
    mlp = tower.mlp
    if type(mlp) is not MLP:
        return None
    linears = [*mlp.layers, tower.logit]
    if any(is_watched(module) for module in (tower, mlp, *linears)):
        return None
    if any(type(layer) is not nn.Linear or layer.bias is None for layer in linears):
        return None
    weights = [layer.weight for layer in linears]
    read = _dtype_read(h_BO)
    if read is None or not all(
        weight.dtype in (read, accumulate_dtype(read)) and weight.device == h_BO.device
        for weight in weights
    ):
        return None
    widths, dtype = tuple(weight.shape for weight in weights), weights[0].dtype
    return widths, mlp.activation, mlp.dropout, tower.training, mlp.training, dtype, read


def is_watched(module: nn.Module) -> bool:
    """Whether somebody's hook or method wants to see calls, which would not come.

    Args:
        module: Of any class.

    Example:
        >>> import torch
        >>> from mmoe.tasks.alike import is_watched
        >>> is_watched(torch.nn.Linear(2, 2))
        False
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    own = vars(module)
    return "forward" in own or "head" in own or any(own[name] for name in hooks)


def _dtype_read(h_BO: Tensor) -> torch.dtype | None:
    """What rows are cast to under autocast; None where the operator does not know it."""
    device, dtype = h_BO.device.type, h_BO.dtype
    if torch.is_autocast_enabled(device):
        if torch.get_autocast_dtype(device) != torch.bfloat16:
            return None
        dtype = torch.bfloat16 if dtype == torch.float32 else dtype
    return dtype if dtype in FLOAT_DTYPES and h_BO.dim() == 2 else None


def _logits_of_alike(towers: Sequence[Tower], inputs: Sequence[Tensor] | Tensor) -> Tensor:
    """Computes `logits_BT` of towers of one form from T inputs `h_BO`, or one `h_TBO`."""
    mlp = towers[0].mlp
    x: Sequence[Tensor] | Tensor = inputs
    if not isinstance(x, Tensor) and all(each is x[0] for each in x):
        x = x[0]
    if len(mlp.layers):  # else the logits' product, in fp32, is the first one
        x = cast_for_autocast(x) if isinstance(x, Tensor) else [cast_for_autocast(h) for h in x]
    for layer in range(len(mlp.layers)):
        weight_TOH, bias_TH = _stacked([tower.mlp.layers[layer] for tower in towers])
        x = dense_mm(x, weight_TOH, bias_TH, mlp.activation)
        if mlp.dropout and mlp.training:
            x = [F.dropout(each, mlp.dropout) for each in x]
    with torch.autocast(towers[0].logit.weight.device.type, enabled=False):
        weight_TH1, bias_T1 = _stacked([tower.logit for tower in towers])
        dtype = torch.promote_types(weight_TH1.dtype, torch.float32)
        weight_TH1, bias_T1 = weight_TH1.to(dtype), bias_T1.to(dtype)
        x = x.to(dtype) if isinstance(x, Tensor) else [each.to(dtype) for each in x]
        if not towers[0].training:  # bits of a row that depend on that row alone
            return torch.cat(dense_mm(x, weight_TH1, bias_T1), dim=1)
        # One number a row leaves a product's registers empty: its gradient took three times as long
        each = [x] * len(towers) if isinstance(x, Tensor) and x.dim() == 2 else x
        weights = weight_TH1.squeeze(2).unbind(0)
        logits = [torch.mv(h_BH, weight_H) for h_BH, weight_H in zip(each, weights, strict=True)]
        return torch.stack(logits, dim=1) + bias_T1.squeeze(1)


def _stacked(layers: Sequence[nn.Module]) -> tuple[Tensor, Tensor]:
    """The matrices of T layers `[T, in, out]`, and their biases."""
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    weight_THD = torch.stack([layer.weight for layer in linears])
    return weight_THD.transpose(1, 2), torch.stack([layer.bias for layer in linears])
