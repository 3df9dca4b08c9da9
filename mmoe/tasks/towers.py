"""Towers: one head per task, an MLP over its mixture and a logit.

Towers of one form are computed together: a layer of all of them is one call. A layer's matrices are
put into one tensor in every call, which is small beside the rows, so that each tower keeps its own
parameters: they are stored, frozen, averaged and transferred one by one.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config.experts import Activation
from mmoe.mixture import MLP, Inputs, Unmixed, stable_linear
from mmoe.mixture.axes import Entry, Names, Part, named
from mmoe.mixture.batch_invariant import HAS_KERNELS, activate
from mmoe.mixture.inputs import of_each_domain
from mmoe.mixture.pytrees import cast_for_autocast
from mmoe.ops import FLOAT_DTYPES, dense_mm, mixed_towers


class Tower(nn.Module):
    """Tower of one task, an MLP and a linear layer: `logit = v · mlp(h) + c`.

    The last product runs in fp32 under autocast too: in bf16 a logit has 8 bits, and rows that the
    model tells apart would tie.

    Args:
        input_dim: Width of the mixture's output.
        hidden: Widths of the MLP; `[]` = only the linear layer.
        activation: `relu`, `gelu` or `silu`.
        dropout: Of the MLP's units, while training.

    Example:
        >>> import torch
        >>> from mmoe.tasks import Tower
        >>> Tower(16, [8])(torch.zeros(4, 16))
        tensor([0., 0., 0., 0.], grad_fn=<SelectBackward0>)

    Source: The last layer starts as in LeCun et al., "Efficient backprop" (1998), section 4.6:
        variance 1 / fan-in. Its bias is zero until a run starts it at the task's base rate
        (`start_at`).
    """

    constants_J: nn.Parameter | None

    def __init__(
        self,
        input_dim: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.mlp = MLP(input_dim, hidden, activation=activation, dropout=dropout)
        self.logit = nn.Linear(self.mlp.output_dim, 1)
        self.register_parameter("constants_J", None)
        self.reset_parameters()

    def axes(self) -> dict[str, dict[int, str]]:
        """Says that the last layer's tensors begin with a dimension of logits."""
        return {"logit.weight": {0: "logits"}, "logit.bias": {0: "logits"}}

    @property
    def num_logits(self) -> int:
        """Numbers that it computes of a row: 1, unless `widen` says more."""
        return self.logit.out_features

    def widen(self, num_logits: int, num_constants: int = 0) -> None:
        """Gives it more columns; the last layer is drawn anew.

        Args:
            num_logits: Numbers that it computes of a row.
            num_constants: Learnt numbers, the same for all rows and zero at first, that stand
                behind these.

        Example:
            >>> import torch
            >>> from mmoe.tasks import Tower
            >>> tower = Tower(16, [8])
            >>> tower.widen(1, 4)
            >>> tower(torch.zeros(3, 16)).shape
            torch.Size([3, 5])
        """
        self.logit = nn.Linear(self.mlp.output_dim, num_logits)
        self.constants_J = nn.Parameter(torch.zeros(num_constants)) if num_constants else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights for the last layer from torch's random generator."""
        nn.init.kaiming_normal_(self.logit.weight, nonlinearity="linear")
        nn.init.zeros_(self.logit.bias)

    def start_at_zero(self) -> None:
        """Gives the last layer weights of zero, so that every logit is 0 until it is trained."""
        nn.init.zeros_(self.logit.weight)

    def start_at(self, values: Sequence[float]) -> None:
        """Gives the bias of the last layer, and then the constants, their first values.

        Args:
            values: At most as many as there are; the others stay.

        Example:
            >>> from mmoe.tasks import Tower
            >>> tower = Tower(16, [8])
            >>> tower.start_at([-5.0])
            >>> tower.logit.bias.tolist()
            [-5.0]
        """
        with torch.no_grad():
            own = values[: self.num_logits]
            self.logit.bias[: len(own)] = torch.tensor(own)
            if self.constants_J is not None:
                behind = values[self.num_logits :]
                self.constants_J[: len(behind)] = torch.tensor(behind)

    def forward(self, h_BO: Tensor) -> Tensor:
        """Computes `logit_B` from `h_BO`, fp32 (fp64 where the weights are).

        Of several columns, `logits_BK`.
        """
        return self.head(self.mlp(h_BO))

    def head(self, h_BH: Tensor) -> Tensor:
        """Computes `logit_B` (or `logits_BK`) from what the MLP gave, likewise."""
        with torch.autocast(h_BH.device.type, enabled=False):
            dtype = torch.promote_types(self.logit.weight.dtype, torch.float32)
            weight, bias = self.logit.weight.to(dtype), self.logit.bias.to(dtype)
            linear = F.linear if self.training else stable_linear
            return self.columns_of(linear(h_BH.to(dtype), weight, bias))

    def columns_of(self, logits_BK: Tensor) -> Tensor:
        """Returns the last layer's columns as the tower's: `logit_B` of one, constants behind."""
        if self.constants_J is not None:
            constants_BJ = self.constants_J.to(logits_BK.dtype).expand(len(logits_BK), -1)
            return torch.cat([logits_BK, constants_BJ], dim=1)
        return logits_BK[:, 0] if self.num_logits == 1 else logits_BK


class LogitColumns(NamedTuple):
    """Columns of the towers' logits, side by side.

    Attributes:
        first: Of each tower, its first column.
        of_rows: Of each tower, the columns that differ from row to row: not its constants.
        width: Columns of all together.
    """

    first: list[int]
    of_rows: list[list[int]]
    width: int

    @property
    def is_plain(self) -> bool:
        """Whether each tower has one column."""
        return self.width == len(self.first)


class TaskTowers(nn.ModuleList):
    """Towers of T tasks; arguments are those of `Tower`.

    Those of one form are computed together (`logits_of_towers`).

    Example:
        >>> import torch
        >>> from mmoe.tasks import TaskTowers
        >>> h_BO = torch.zeros(4, 16)
        >>> TaskTowers(2, 16, [8])([h_BO, h_BO]).shape
        torch.Size([4, 2])
    """

    of_domains = False  # whether a tower has weights of each domain's own

    def __init__(
        self,
        num_tasks: int,
        input_dim: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            Tower(input_dim, hidden, activation=activation, dropout=dropout)
            for _ in range(num_tasks)
        )

    @classmethod
    def of(cls, towers: Iterable[nn.Module]) -> "TaskTowers":
        """Makes them of modules of any class that map `h_BO` to `logit_B`, one per task."""
        made = cls(0, 1, [])
        made.extend(towers)
        made.of_domains = any(isinstance(tower, DomainTower) for tower in made)
        return made

    def named_parts(self, names: Names) -> list[Part]:
        """Says whose each tower is, and its logits."""
        tasks = [named(names, "tasks", t) for t in range(len(self))]
        logits = [own for own in names.get("logits", ()) if isinstance(own, tuple)]  # (task, which)
        return [
            Part(
                str(t),
                (Entry("tasks", task),),
                {**names, "logits": [own for own in logits if own[0] == task]},
            )
            for t, task in enumerate(tasks)
        ]

    @property
    def columns(self) -> "LogitColumns":
        """Returns the columns of each tower's logits."""
        first, linear, width = [], [], 0
        for tower in self:
            own = tower.num_logits if isinstance(tower, Tower) else 1
            more = tower.constants_J if isinstance(tower, Tower) else None
            first.append(width)
            linear.append(list(range(width, width + own)))
            width += own + (0 if more is None else len(more))
        return LogitColumns(first, linear, width)

    def spread(self, added_XR: Tensor, *, one_a_task: bool = False, beside: float = 0.0) -> Tensor:
        """Puts numbers of logits where these stand.

        Args:
            added_XR: A column for each of `columns.of_rows`, in their order.
            one_a_task: There is one column a task instead, for its first logit.
            beside: What others get.

        Returns:
            As many columns as `forward` returns.
        """
        columns = self.columns
        if columns.is_plain:
            return added_XR
        own = [column for of_task in columns.of_rows for column in of_task]
        places_R = torch.tensor(columns.first if one_a_task else own)
        wide_XL = added_XR.new_full((*added_XR.shape[:-1], columns.width), beside)
        return wide_XL.index_copy(-1, places_R.to(added_XR.device, non_blocking=True), added_XR)

    def forward(self, inputs: Sequence[Tensor] | Tensor | Unmixed) -> Tensor:
        """Computes `logits_BT` from T inputs `h_BO`, one per task; all columns of each.

        Args:
            inputs: T tensors, or one `h_BTO`, which is read without a copy where the rows of a task
                lie side by side in memory; or what the mixes of T gates are made of.
        """
        if isinstance(inputs, Unmixed):
            logits_BT = logits_of_unmixed(list(self), inputs)
            if logits_BT is not None:
                return logits_BT
            inputs = inputs.mixes()
        given = inputs.shape[1] if isinstance(inputs, Tensor) else len(inputs)
        if given != len(self):
            raise ValueError(f"inputs: expected {len(self)} tensors, one per task, got {given}")
        return self.joined(logits_of_towers(list(self), inputs))

    def start_at_zero(self) -> None:
        """Lets every tower but somebody's own begin with logits of 0."""
        for tower in self:
            if isinstance(tower, Tower):
                tower.start_at_zero()

    @property
    def are_silent(self) -> bool:
        """Whether no row moves a logit, as after `start_at_zero`: last layers have no weights."""
        own = type(self).forward is not TaskTowers.forward or self.of_domains
        return not own and all(
            isinstance(tower, Tower) and not bool(tower.logit.weight.any()) for tower in self
        )

    def start_at(self, task: int, values: Sequence[float]) -> None:
        """Gives a tower its first biases, where it takes any: has a `start_at`, as `Tower` has."""
        if hasattr(tower := self[task], "start_at"):
            cast(Tower, tower).start_at(values)

    def in_domains(self, inputs: Sequence[Tensor], rows: Inputs | None) -> Tensor:
        """Computes `logits_BT` of rows with their domains.

        Some towers may have come, and been frozen, before there were domains.

        Args:
            inputs: `h_BO` of each.
            rows: With their domains.
        """
        plain = [t for t, tower in enumerate(self) if not isinstance(tower, DomainTower)]
        of_plain = logits_of_towers([self[t] for t in plain], [inputs[t] for t in plain])
        found = dict(zip(plain, of_plain, strict=True))
        return self.joined(
            [
                found[t] if t in found else tower(h_BO, rows)
                for t, (tower, h_BO) in enumerate(zip(self, inputs, strict=True))
            ]
        )

    def joined(self, logits: Sequence[Tensor]) -> Tensor:
        """Puts what each tower gave side by side, `logits_BT`."""
        if all(each.dim() == 1 for each in logits):
            return torch.stack(list(logits), dim=1)
        return torch.cat([each[:, None] if each.dim() == 1 else each for each in logits], dim=1)


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
    if tower.logit.out_features != 1 or tower.constants_J is not None:
        return None
    mlp = tower.mlp
    if type(mlp) is not MLP:
        return None
    linears = [*mlp.layers, tower.logit]
    if is_watched(tower, mlp, *linears):
        return None
    if any(type(layer) is not nn.Linear or layer.bias is None for layer in linears):
        return None
    weights = [layer.weight for layer in linears]
    read = _dtype_read(h_BO)
    if read is None:
        return None
    known, device = (read, torch.promote_types(read, torch.float32)), h_BO.device
    if any(weight.dtype not in known or weight.device != device for weight in weights):
        return None
    widths, dtype = tuple(weight.shape for weight in weights), weights[0].dtype
    return widths, mlp.activation, mlp.dropout, tower.training, mlp.training, dtype, read


def is_watched(*modules: nn.Module) -> bool:
    """Whether somebody's hook or method wants to see calls of some module, which would not come.

    Args:
        modules: Of any class.

    Example:
        >>> is_watched(torch.nn.Linear(2, 2))
        False
    """
    for own in map(vars, modules):
        hooks = own["_forward_hooks"] or own["_forward_pre_hooks"]
        hooks = hooks or own["_backward_hooks"] or own["_backward_pre_hooks"]
        if hooks or "forward" in own or "head" in own:
            return True
    return False


def _dtype_read(h_BO: Tensor) -> torch.dtype | None:
    """Returns the type that autocast casts rows to; None where the operator does not know it."""
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


def _stacked(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """The matrices of T layers `[T, in, out]`, and their biases."""
    weight_THD = torch.stack([layer.weight for layer in layers])
    return weight_THD.transpose(1, 2), torch.stack([layer.bias for layer in layers])


class DomainTower(Tower):
    """A tower for each of M domains: every layer is `(W + U_m) x + b + c_m` in domain m.

    U and c are 0 at first, so that all begin as the one tower whose W and b they share. Rows of no
    domain go through the mean of the domains' weights: of towers without hidden layers that is the
    mean of their logits. So do rows of domains beyond the M, which came after the tower was frozen.
    One product a layer serves the rows of all domains, in fp32 under autocast too.

    Args:
        tower: The shared part; its parameters are taken over.
        num_domains: M.

    Example:
        >>> tower = DomainTower(Tower(16, [8]), num_domains=3)
        >>> rows = Inputs(x_BR=torch.zeros(4, 16)).in_domains(torch.tensor([2, 0, 1, 2]).int(), 3)
        >>> tower(rows.whole, rows).shape
        torch.Size([4])

    Source: Sheng et al., "One model to serve all: star topology adaptive recommender for
        multi-domain CTR prediction" (CIKM 2021), section 3.4, for weights that a domain makes of
        shared and own ones; there by products, here by sums.
    """

    def __init__(self, tower: Tower, num_domains: int) -> None:
        nn.Module.__init__(self)
        self.mlp, self.logit = tower.mlp, tower.logit
        self.register_parameter("constants_J", tower.constants_J)
        layers: list[nn.Linear] = [*self.mlp.layers, self.logit]
        self.own_weights = nn.ParameterList(
            layer.weight.new_zeros(num_domains, *layer.weight.shape) for layer in layers
        )
        self.own_biases = nn.ParameterList(
            layer.bias.new_zeros(num_domains, layer.out_features) for layer in layers
        )

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are."""
        own = [name for name in self.state_dict() if name.startswith("own_")]
        return {**super().axes(), **{name: {0: "domains"} for name in own}}

    def forward(self, h_BO: Tensor, rows: Inputs | None = None) -> Tensor:
        """Computes `logit_B` (of several columns `logits_BK`) of rows with their domains."""
        assert rows is not None, "rows of such a network have domains"
        rows = rows.first_domains(len(self.own_weights[0]))
        for number in range(len(self.mlp.layers)):
            h_BO = self._layer(number, h_BO, rows)
            h_BO = activate(h_BO, self.mlp.activation, training=self.training)
            h_BO = F.dropout(h_BO, self.mlp.dropout, self.training)
        return self.columns_of(self._layer(len(self.mlp.layers), h_BO, rows))

    def _layer(self, number: int, x_BD: Tensor, rows: Inputs) -> Tensor:
        layer: nn.Linear = (*self.mlp.layers, self.logit)[number]
        weight_NHD = of_each_domain(layer.weight, self.own_weights[number])
        bias_NH = of_each_domain(layer.bias, self.own_biases[number])
        return rows.domain_products(x_BD, weight_NHD, bias_NH)
