"""`BiasTower`: what of a label is due to its display, such as the position, kept apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mmoe.config.model import BiasConfig
from mmoe.datasets import Batch
from mmoe.mixture import MLP
from mmoe.mixture.batch_invariant import apply_linear
from mmoe.models.columns import BiasColumns
from mmoe.models.inputs import Added, NetworkInputs, Rows


class BiasTower(nn.Module):
    """A shallow tower over features of the display: logits to be added to those of the tasks.

    `logit_t = z_t(x) + b_t(display)`, where b is an MLP with one output a task, or as many as its
    kind computes of a row. While training, b
    is left out of a share `dropout` of the rows, so that z has to explain labels without it; that
    also settles which of the two has the constant that both could have. It begins at 0.

    All is computed in fp32, under autocast too; in evaluation on the CPU a row's bits depend on
    that row alone.

    Args:
        columns: Which inputs it reads.
        config: Its widths, dropout and what becomes of it when rows are scored.
        task_names: Of all tasks, in the order of the logits.
        num_logits: How many each task's tower computes of a row; None: one each.

    Example:
        >>> columns = BiasColumns(dense=[1], ids=[], num_dense=2, num_ids=0)
        >>> tower = BiasTower(columns, BiasConfig(features=["position"]), ["click", "like"])
        >>> rows = NetworkInputs(torch.zeros(4, 2), None)
        >>> tower(rows).shape, tower.others(rows).dense_NF.shape
        (torch.Size([4, 2]), torch.Size([4, 1]))

    Source: Zhao et al., "Recommending what video to watch next: a multitask ranking system" (RecSys
        2019), section 4.3, whose tower reads a missing position where this one is left out.
    """

    def __init__(
        self,
        columns: BiasColumns,
        config: BiasConfig,
        task_names: Sequence[str],
        num_logits: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if columns.width < 1:
            raise ValueError("columns: expected one or more that the tower reads, got none")
        self.columns, self.config = columns, config
        self.mlp = MLP(columns.width, config.hidden)
        counts = [1] * len(task_names) if num_logits is None else list(num_logits)
        self.logits = nn.Linear(self.mlp.output_dim, sum(counts))
        nn.init.zeros_(self.logits.weight)
        nn.init.zeros_(self.logits.bias)
        asked = config.tasks or task_names
        named = [n for n, count in zip(task_names, counts, strict=True) for _ in range(count)]
        self._keep("biased_R", [name in asked for name in named])
        for what, own, total in (
            ("dense", columns.dense, columns.num_dense),
            ("ids", columns.ids, columns.num_ids),
        ):
            self._keep(f"own_{what}", list(own), torch.int64)
            self._keep(f"other_{what}", sorted(set(range(total)) - set(own)), torch.int64)

    def added(self, rows: Rows) -> Added:
        """Returns what it computes of the display of rows."""
        return Added(self(rows.all))

    def forward(self, rows: NetworkInputs) -> Tensor:
        """Computes what is added to the logits of rows, `[B, R]` in fp32 at least.

        Args:
            rows: All columns of the network's inputs.
        """
        dense_BF, x_BD = rows
        with torch.autocast(dense_BF.device.type, enabled=False):
            dtype = self.logits.weight.dtype
            parts = [dense_BF.index_select(1, self.get_buffer("own_dense")).to(dtype)]
            if x_BD is not None:
                parts.append(x_BD.index_select(1, self.get_buffer("own_ids")).to(dtype))
            h_BH = self.mlp(torch.cat(parts, dim=1))
            logits_BR = apply_linear(self.logits, h_BH)
            kept_BR = self.get_buffer("biased_R")
            if self.training and self.config.dropout:
                drawn_B1 = torch.rand(len(h_BH), 1, device=h_BH.device)
                kept_BR = kept_BR & (drawn_B1 >= self.config.dropout)
            return torch.where(kept_BR, logits_BR, 0.0)

    def axes(self) -> dict[str, dict[int, str]]:
        """Returns what the dimensions of its tensors are; its first layer reads the inputs."""
        logits, first = {0: "logits"}, "mlp.layers.0.weight"
        found = {"logits.weight": logits, "logits.bias": logits, first: {1: "inputs"}}
        return (
            found if len(self.mlp.layers) else {**found, "logits.weight": {**logits, 1: "inputs"}}
        )

    def others(self, rows: NetworkInputs) -> NetworkInputs:
        """Returns what the rest of the network reads: the inputs without those of the tower."""
        dense_BF, x_BD = rows
        dense_BF = dense_BF.index_select(1, self.get_buffer("other_dense"))
        if x_BD is not None:
            x_BD = x_BD.index_select(1, self.get_buffer("other_ids"))
        return NetworkInputs(dense_BF, x_BD)

    @property
    def scores(self) -> bool:
        """Returns whether a scored row has its logit, with the values that are fixed."""
        return self.config.scoring == "fixed"

    def fix(self, batch: Batch) -> Batch:
        """Puts the fixed values into rows that are to be scored, which have no requests."""
        rows, columns = len(batch), self.columns
        dense_BF, values = batch.dense_BF, batch.values
        if columns.fixed_dense:
            dense_BF = dense_BF.clone()
        for column, value in columns.fixed_dense.items():
            dense_BF[:, column] = value
        if columns.fixed_ids:
            values = values.clone()
        for feature, row in columns.fixed_ids.items():  # ids of one a row come first, in order
            values[feature * rows : (feature + 1) * rows] = row
        return replace(batch, dense_BF=dense_BF, values=values)

    def _keep(self, name: str, values: list[Any], dtype: torch.dtype | None = None) -> None:
        """Keeps numbers on the network's device, and out of its files."""
        self.register_buffer(name, torch.tensor(values, dtype=dtype), persistent=False)
