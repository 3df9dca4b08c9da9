"""`BiasTower`: what of a label is due to its display, such as the position, kept apart."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmoe.config import RunConfig
from mmoe.config.model import BiasConfig
from mmoe.datasets import Batch, FeatureEncoder
from mmoe.datasets.features.codec import Codec
from mmoe.datasets.features.id_map import MISSING, UNSEEN
from mmoe.mixture import MLP, stable_linear
from mmoe.models.input_layers import replaced_names
from mmoe.models.inputs import Added, NetworkInputs, Rows
from mmoe.models.sequences.inputs import sequence_columns


@dataclass(frozen=True, kw_only=True)
class BiasColumns:
    """Columns of a network's inputs that belong to the display, and the values that are fixed.

    Attributes:
        dense: Numbers of the tower's columns among dense ones, as `InputLayers` returns them.
        ids: Numbers of its columns among embeddings, behind which the vectors of sequences stand.
        num_dense: How many dense columns there are.
        num_ids: How many columns embeddings and those vectors have.
        fixed_dense: Raw dense column → the encoded value that every scored row has.
        fixed_ids: Feature of one id a row, by its number → the encoded id that it has.
    """

    dense: Sequence[int]
    ids: Sequence[int]
    num_dense: int
    num_ids: int
    fixed_dense: dict[int, float] = field(default_factory=dict)
    fixed_ids: dict[int, int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Number of columns that the tower reads, and the rest of the network does not."""
        return len(self.dense) + len(self.ids)

    @classmethod
    def of(cls, config: RunConfig, encoder: FeatureEncoder) -> "BiasColumns":
        """Finds those of `config.model.bias`, which is there.

        Raises:
            ValueError: A value of `at` is none that its feature has learnt.
        """
        bias = config.model.bias
        assert bias is not None, "asked for where there is one"
        own = own_names(bias, encoder)
        names = replaced_names(encoder.dense_names, encoder.input_layers)
        looked_up = own_lookups(bias, encoder)
        dims = {table.name: table.dim for table in encoder.tables}
        ids: list[int] = []
        start = 0
        for feature in (*encoder.categorical, *encoder.lists):
            dim = 0 if feature.pooling == "none" else dims[feature.table]
            ids += range(start, start + dim) if feature.name in looked_up else ()
            start += dim
        fixed_dense, fixed_ids = _fixed(bias, config, encoder)
        return cls(
            dense=[place for place, name in enumerate(names) if name in own],
            ids=ids,
            num_dense=len(names),
            num_ids=start + sum(width for _, width in sequence_columns(encoder)),
            fixed_dense=fixed_dense,
            fixed_ids=fixed_ids,
        )


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
            linear = F.linear if self.training else stable_linear
            logits_BR = linear(h_BH, self.logits.weight, self.logits.bias)
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


def own_lookups(bias: BiasConfig | None, encoder: FeatureEncoder) -> set[str]:
    """Returns the names of what features of `model.bias` look up; of none where there is none."""
    names = () if bias is None else bias.features
    return {
        spec.name
        for codec in encoder.codecs
        if codec.feature.name in names
        for spec in (*codec.lookups, *codec.lists)
    }


def own_names(bias: BiasConfig | None, encoder: FeatureEncoder) -> set[str]:
    """Returns the names of the columns of numbers of features of `model.bias`.

    As they are before `InputLayers` and behind them.
    """
    if bias is None:
        return set()
    return {name for codec in encoder.codecs for name in _dense_names(codec, encoder, bias)}


def own_dense(bias: BiasConfig | None, encoder: FeatureEncoder) -> list[int]:
    """Returns the numbers of the raw dense columns of features of `model.bias`."""
    names = () if bias is None else bias.features
    found: list[int] = []
    start = 0
    for codec in encoder.codecs:
        width = len(codec.dense_columns(encoder.rules))
        found += range(start, start + width) if codec.feature.name in names else ()
        start += width
    return found


def _dense_names(codec: Codec[Any], encoder: FeatureEncoder, bias: BiasConfig) -> list[str]:
    """Names the columns that one feature has, before and behind `InputLayers`."""
    if codec.feature.name not in bias.features:
        return []
    layers = codec.input_layers(encoder.rules, 0)
    made = [name for layer in layers for name in layer.columns]
    return [*codec.dense_columns(encoder.rules), *made]


def _fixed(
    bias: BiasConfig, config: RunConfig, encoder: FeatureEncoder
) -> tuple[dict[int, float], dict[int, int]]:
    """The encoded values of `at`, by dense column and by feature of one id a row."""
    if bias.scoring != "fixed":
        return {}, {}
    fixed, row = bias.unread(config.features), pa.table({c: [v] for c, v in bias.at.items()})
    dense: dict[int, float] = {}
    ids: dict[int, int] = {}
    first_dense = first_id = 0
    for codec in encoder.codecs:
        width = len(codec.dense_columns(encoder.rules))
        if codec.feature.name in fixed:
            coded = encoder.encode_one(codec, row, "model.bias.at")
            values = [float(value) for part in coded.dense for value in part.reshape(-1)]
            dense |= dict(enumerate(values, first_dense))
            found = [int(part[0]) for part in coded.ids]
            strange = coded.outside_N is not None and coded.outside_N.any()
            if strange or UNSEEN in found or MISSING in found:
                asked = ", ".join(f"{c}: {bias.at[c]!r}" for c in codec.feature.source_columns)
                near = ", or a number near it" if strange and coded.dense else ""
                raise ValueError(
                    f"model.bias.at: no training row has {asked}{near} (feature "
                    f"{codec.feature.name!r}); name a value that the log has"
                )
            ids |= dict(enumerate(found, first_id))
        first_dense, first_id = first_dense + width, first_id + len(codec.lookups)
    return dense, ids
