"""A feature kind: a whole number, looked up by its remainder."""

from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

import mmoe.register
from mmoe.config import Feature, TableSpec
from mmoe.datasets.features import Codec, Coded, Rules, Section


class RemainderFeature(Feature):
    """A whole number modulo another one."""

    kind: Literal["remainder"] = "remainder"
    name: str = Field(description="of the feature")
    divisor: int = Field(ge=2, description="remainders are below it")
    dim: int | None = Field(default=None, description="width of the embedding")

    @property
    def source_columns(self) -> list[str]:
        return [self.name]

    @property
    def derived_names(self) -> list[str]:
        return [f"{self.name}__remainder"]


class Smallest(Section):
    """Feature → the smallest number of the training rows."""

    name = "smallest"
    entry = int


@mmoe.register.feature("remainder", RemainderFeature)
class RemainderCodec(Codec[RemainderFeature]):
    """0 = missing, then the remainders of what is above the smallest number."""

    sections: ClassVar = (Smallest(),)
    content = "remainders"

    def tables(self, rules: Rules) -> list[TableSpec]:
        rows = self.feature.divisor + 1
        return [TableSpec(name=self.feature.derived_names[0], num_rows=rows, dim=self.dim)]

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [("smallest", self.feature.name)]

    @property
    def number_columns(self) -> list[str]:
        return [self.feature.name]

    def start(self, origin: str, codecs: Any) -> list[float]:
        return []

    def add(self, fit: list[float], table: pa.Table, origin: str) -> None:
        fit.append(float(np.nanmin(self.numbers(table, origin)[0])))

    def finish(self, fits: Any, rules: Rules) -> None:
        rules["smallest"][self.feature.name] = int(min(fits[0]))

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        [numbers_N] = self.numbers(table, origin)
        above_N = numbers_N - rules["smallest"][self.feature.name]
        ids_N = np.where(np.isnan(above_N), -1, np.nan_to_num(above_N) % self.feature.divisor)
        return Coded(ids=[(ids_N + 1).astype(np.int32)])
