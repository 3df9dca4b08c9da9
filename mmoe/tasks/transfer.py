"""Towers that read those of the tasks before theirs: AITM's attention, DBMTL's hidden layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from mmoe.config import TaskConfig
from mmoe.config.relations import order_of
from mmoe.mixture import MLP
from mmoe.mixture.axes import Entry, Names, Part, named
from mmoe.mixture.batch_invariant import apply_linear
from mmoe.tasks.predictions import own_logits
from mmoe.tasks.towers import TaskTowers, Tower


class LabelLoss(Protocol):
    """A loss of a batch's logits that a module adds to those of the tasks."""

    def __call__(
        self, logits_BT: Tensor, observed_BT: Tensor, weights_BT: Tensor, out_of_T: Tensor
    ) -> Tensor:
        """Computes a scalar; arguments as those of `multi_task_loss`."""
        ...


@dataclass(frozen=True)
class Calibrator:
    """AITM's calibrator as a loss of all logits: `weight · calibrator_loss`.

    Attributes:
        weight: Its weight.
        pairs: Of tasks, the former and the later.
        tasks: Whose columns of logits these are.
    """

    weight: float
    pairs: Sequence[tuple[int, int]]
    tasks: Sequence[TaskConfig]

    def __call__(
        self, logits_BT: Tensor, observed_BT: Tensor, weights_BT: Tensor, out_of_T: Tensor
    ) -> Tensor:
        """Computes it."""
        logits = own_logits(logits_BT, self.tasks)
        loss = calibrator_loss(logits, observed_BT, weights_BT, self.pairs, out_of_T)
        return self.weight * loss


def calibrator_loss(
    logits: Sequence[Tensor],
    observed_BT: Tensor,
    weights_BT: Tensor,
    pairs: Sequence[tuple[int, int]],
    out_of_T: Tensor,
) -> Tensor:
    """Computes `Σ_(s, t) Σ_b w_bt max(σ(z_bt) − σ(z_bs), 0) / Σ_b w_bt` over rows with label t.

    Args:
        logits: `logit_B` of every task.
        observed_BT: Bool, where the label exists.
        weights_BT: Row weights.
        pairs: Of tasks, the former s and the later t.
        out_of_T: What each task's sum is divided by, as in `multi_task_loss`: parts of a batch,
            given the observed weights of all of it, add up to the loss of the whole.

    Returns:
        A scalar, in fp32 at least.

    Example:
        >>> logits = [torch.zeros(2), torch.tensor([100.0, -100.0])]  # of click, of purchase
        >>> ones = torch.ones(2, 2)
        >>> calibrator_loss(logits, ones.bool(), ones, [(0, 1)], torch.tensor([2.0, 2.0]))
        tensor(0.2500)

    Source: Xi et al., "Modeling the sequential dependence among audience multi-step conversions
        with multi-task learning in targeted display advertising" (KDD 2021), the behavioural
        expectation calibrator; there every label is observed, and every weight 1.
    """
    dtype = torch.promote_types(logits[0].dtype, torch.float32)
    zero = torch.zeros((), dtype=dtype, device=logits[0].device)
    weights_BT, total = torch.where(observed_BT, weights_BT.to(dtype), zero), zero
    for former, later in pairs:
        excess_B = (logits[later].to(dtype).sigmoid() - logits[former].to(dtype).sigmoid()).relu()
        whole = torch.where(out_of_T[later] > 0, out_of_T[later], 1)
        total = total + (weights_BT[:, later] * excess_B).sum() / whole
    return total


class InformationTransfer(nn.Module):
    """Attention of one task over its own mix, q, and what the tasks before it pass on.

    `z = Σ_u softmax_u(h2(u) · h3(u) / √k) h1(u)` over u = q and u = `relu(W_s z_s + b_s)` of each
    task s before it; h1, h2 and h3 are linear, shared by all u.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        width: Of q and z.
        parents: How many tasks come right before it.
        dim: k, width of h2(u) and h3(u).

    Example:
        >>> q_BO, z_BO = torch.zeros(2, 5, 16)
        >>> InformationTransfer(16, parents=1)(q_BO, [z_BO]).shape
        torch.Size([5, 16])

    Source: Xi et al., "Modeling the sequential dependence among audience multi-step conversions
        with multi-task learning in targeted display advertising" (KDD 2021), the adaptive
        information transfer module; there a task has one before it.
    """

    def __init__(self, width: int, parents: int, dim: int = 32) -> None:
        super().__init__()
        self.carries = nn.ModuleList(MLP(width, [width]) for _ in range(parents))
        self.value = nn.Linear(width, width, bias=False)
        self.query = nn.Linear(width, dim, bias=False)
        self.key = nn.Linear(width, dim, bias=False)
        self.reset_parameters()

    def named_parts(self, names: Names) -> list[Part]:
        """Says which task each of `carries` is of, by the `parents` among the names."""
        carries = [
            Part(f"carries.{i}", ("carries", Entry("tasks", named(names, "parents", i))), names)
            for i in range(len(self.carries))
        ]
        return carries + [Part(name, (name,), names) for name in ("value", "query", "key")]

    def reset_parameters(self) -> None:
        """Draws new weights for h1, h2 and h3 from torch's random generator."""
        for layer in (self.value, self.query, self.key):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")

    def forward(self, own_BO: Tensor, before: Sequence[Tensor]) -> Tensor:
        """Computes `z_BO` from q and the z of each task before, in fp32 at least."""
        carried = [carry(z_BO) for carry, z_BO in zip(self.carries, before, strict=True)]
        read_BUO = torch.stack([own_BO, *(c.to(own_BO.dtype) for c in carried)], dim=1)
        values_BUO, queries_BUK, keys_BUK = (
            _wide(apply_linear(layer, read_BUO)) for layer in (self.value, self.query, self.key)
        )
        # Not products of matrices: their sums depend on the height of the batch
        scores_BU = (queries_BUK * keys_BUK).sum(2) / math.sqrt(keys_BUK.shape[2])
        return (scores_BU.softmax(1)[:, :, None] * values_BUO).sum(1)


class AdaptiveTransfer(nn.Module):
    """Puts an `InformationTransfer` before the tower of each task that comes after others (AITM).

    Towers may be of any kind: what they read is as wide as it was.

    Args:
        parents: For each task the places of those that it comes after, without a circle.
        width: Of what towers read.
        dim: Of the attention's queries and keys.
        calibrator: A loss that keeps a later task's probability below the former's; or None.

    Example:
        >>> transfer = AdaptiveTransfer([[], [0]], 16)
        >>> transfer(TaskTowers(2, 16, [8]), [torch.zeros(4, 16)] * 2).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        parents: Sequence[Sequence[int]],
        width: int,
        *,
        dim: int = 32,
        calibrator: LabelLoss | None = None,
    ) -> None:
        super().__init__()
        self.label_losses = [] if calibrator is None else [calibrator]
        self.parents, self.order = [list(before) for before in parents], order_of(parents)
        self.tasks = nn.ModuleList(
            InformationTransfer(width, len(before), dim) if before else nn.Identity()
            for before in parents
        )

    def named_parts(self, names: Names) -> list[Part]:
        """Says whose each task's attention is, and whom it comes after."""
        return [
            part._replace(names={**names, "parents": [named(names, "tasks", p) for p in before]})
            for part, before in zip(_of_tasks(self.tasks, names), self.parents, strict=True)
        ]

    def forward(self, towers: TaskTowers, inputs: Sequence[Tensor]) -> Tensor:
        """Computes `logits_BT` from T inputs `h_BO`, one per task."""
        read = list(inputs)
        for task in self.order:
            if self.parents[task]:
                before = [read[parent] for parent in self.parents[task]]
                read[task] = self.tasks[task](inputs[task], before)
        return towers(read)


class BayesianTransfer(nn.Module):
    """Joins a tower's last hidden layer with those of the tasks before it (DBMTL).

    `logit_t = v_t · r_t + c_t` with `r_t = act(W_t [mlp_t(h_t); r_s …] + b_t)` over all tasks s
    right before t, and `r_t = mlp_t(h_t)` where there are none: a model of P(y_t | x, y_s …) whose
    towers learn together.

    In evaluation on the CPU a row's bits depend on that row alone.

    Args:
        parents: For each task the places of those that it comes after, without a circle.
        towers: What it will be called with, all alike.

    Raises:
        ValueError: A tower is no `Tower`, whose hidden layer could be read.

    Example:
        >>> towers = TaskTowers(2, 16, [8])
        >>> BayesianTransfer([[], [0]], towers)(towers, [torch.zeros(4, 16)] * 2).shape
        torch.Size([4, 2])

    Source: Wang et al., "Deep Bayesian multi-target learning for recommender systems"
        (arXiv:1902.09154, 2019).
    """

    label_losses: Sequence[LabelLoss] = ()

    def __init__(self, parents: Sequence[Sequence[int]], towers: TaskTowers) -> None:
        super().__init__()
        self.parents, self.order = [list(before) for before in parents], order_of(parents)
        self.tasks = nn.ModuleList()
        for tower, before in zip(towers, parents, strict=True):
            if not isinstance(tower, Tower):
                raise ValueError(
                    f"towers: expected modules of class Tower, whose hidden layers can be read, "
                    f"got {type(tower).__name__}; use AdaptiveTransfer"
                )
            mlp = tower.mlp
            joined = MLP(
                mlp.output_dim * (1 + len(before)),
                [mlp.output_dim],
                activation=mlp.activation,
                dropout=mlp.dropout,
            )
            self.tasks.append(joined if before else nn.Identity())

    def named_parts(self, names: Names) -> list[Part]:
        """Names each layer's task, and the tasks whose hidden units it reads.

        They are its own, then those of each task before it.
        """
        found = []
        for part, before, layer in zip(
            _of_tasks(self.tasks, names), self.parents, self.tasks, strict=True
        ):
            width = cast(MLP, layer).output_dim if before else 0
            read = [None, *(named(names, "tasks", parent) for parent in before)]
            units = [(task, unit) for task in read for unit in range(width)]
            found.append(part._replace(names={**names, "inputs": units}))
        return found

    def forward(self, towers: TaskTowers, inputs: Sequence[Tensor]) -> Tensor:
        """Computes `logits_BT` from T inputs `h_BO`, one per task."""
        hidden: dict[int, Tensor] = {}
        for task in self.order:
            own_BH = _tower(towers, task).mlp(inputs[task])
            before = [hidden[parent] for parent in self.parents[task]]
            hidden[task] = self.tasks[task](torch.cat([own_BH, *before], 1)) if before else own_BH
        return towers.joined([_tower(towers, t).head(hidden[t]) for t in range(len(towers))])


def _of_tasks(tasks: nn.ModuleList, names: Names) -> list[Part]:
    """Returns each task's module."""
    own = [Entry("tasks", named(names, "tasks", task)) for task in range(len(tasks))]
    return [Part(f"tasks.{task}", ("tasks", entry), names) for task, entry in enumerate(own)]


def _tower(towers: TaskTowers, task: int) -> Tower:
    tower = towers[task]
    assert isinstance(tower, Tower), "asked when it was built"
    return tower


def _wide(x: Tensor) -> Tensor:
    """Under autocast weights of an attention would be rounded to 8 bits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
