"""Where the rows come from and how they are split."""

from typing import Any, Literal

from pydantic import Field, model_validator

from mmoe.config.base import Strict

Paths = str | list[str]


class SplitConfig(Strict):
    """Which rows train, which choose the checkpoint, which are reported.

    `random` permutes the rows with `split_seed`; `hash` keeps all rows of one key together; `time`
    trains on the past and tests on the future; `file` reads data.train, data.validation, data.test.
    """

    by: Literal["random", "hash", "time", "file"] = "random"
    column: str | None = Field(default=None, description="the key (hash) or the time (time)")
    validation: float = Field(default=0.1, gt=0, lt=1, description="share of the rows")
    test: float = Field(default=0.1, gt=0, lt=1, description="share of the rows")

    @model_validator(mode="after")
    def _consistent(self) -> "SplitConfig":
        if self.by in ("hash", "time") and self.column is None:
            raise ValueError(f"split by {self.by} needs `column`")
        if self.by in ("random", "file") and self.column is not None:
            raise ValueError(f"split by {self.by} takes no `column`; remove it")
        if self.validation + self.test >= 1:
            raise ValueError("validation + test must leave rows to train on (be below 1)")
        return self


class DataConfig(Strict):
    """`source: files` reads `path` (or train, validation, test); other sources are bundled."""

    source: str = "files"
    path: Paths | None = Field(
        default=None, description="file, folder or glob; CSV (.gz, .bz2) or Parquet"
    )
    train: Paths | None = None
    validation: Paths | None = None
    test: Paths | None = None
    split: SplitConfig = SplitConfig()
    group_column: str | None = Field(default=None, description="key of GAUC, usually the user")
    options: dict[str, Any] = Field(
        default_factory=dict, description="arguments of a bundled source, e.g. rows of a generator"
    )
