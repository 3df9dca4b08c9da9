"""`SequenceFeature`: what somebody did, event after event."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from mmoe.config.base import Name
from mmoe.config.features.base import LEVEL, NAME_OF_FEATURE, Feature, Level
from mmoe.config.features.datetimes import TimeUnit
from mmoe.config.features.encoders import SequenceEncoderConfig
from mmoe.config.features.ids import CategoricalFeature, ListFeature
from mmoe.config.features.padding import PaddedLists


class SequenceFeature(PaddedLists):
    """What somebody did before: events in the order of time, encoded with a look at the target.

    An event is its ids side by side, one of each column. Columns and targets go together one by
    one, and share the targets' tables.
    """

    derived_are: ClassVar[str] = "events"

    kind: Literal["sequence"] = "sequence"
    name: Name = Field(description=NAME_OF_FEATURE)
    columns: list[str] = Field(
        min_length=1,
        max_length=16,
        description="columns of lists, of one length in each row: the events' items, categories, …",
    )
    target: list[Name] | None = Field(
        default=None,
        description="for each column the categorical feature that says the same of the candidate, "
        "whose table it shares; without it each column has a table of its own",
    )
    times: str | None = Field(
        default=None,
        description="column of lists with the events' times, which never run backwards: the time "
        "since then is embedded, in 64 buckets that grow by √2, and added to the event",
    )
    now: str | None = Field(
        default=None, description="column with the row's own time; default: that of the last event"
    )
    unit: TimeUnit | None = Field(
        default=None,
        description="of times that are numbers, s if left out; timestamps and text say it "
        "themselves",
    )
    max_length: int = Field(default=200, ge=1, le=100_000, description="the latest events are kept")
    newest: Literal["last", "first"] = Field(
        default="last", description="where the newest event of a list is"
    )
    separator: str = Field(
        default="|", min_length=1, description="between items where the column is text"
    )
    format: Literal["separated", "json"] = Field(
        default="separated", description="of lists in text, as that of a list feature"
    )
    encoder: SequenceEncoderConfig = Field(
        default=SequenceEncoderConfig(),
        description="what makes a vector of events; a bare name is short for {kind: name}",
    )
    unpooled: int = Field(
        default=0,
        ge=0,
        le=256,
        description="so many of the latest events are read as they are beside that vector, side by "
        "side, zeros where there are fewer",
    )
    level: Level | None = Field(default=None, description=LEVEL)

    @property
    def source_columns(self) -> list[str]:
        """Names of the columns of events and times, of the row's time, and of padding."""
        times = [name for name in (self.times, self.now) if name is not None]
        return [*self.columns, *times, *self.padding_columns]

    @property
    def event_names(self) -> list[str]:
        """Names of what is looked up for each column; its number too where letters are not enough.

        Example:
            >>> SequenceFeature(name="h", columns=["item", "商品", "类目"]).event_names
            ['h__item', 'h_____2', 'h_____3']
        """
        cleaned = [re.sub("[^A-Za-z0-9_-]", "_", column) for column in self.columns]
        taken = set(cleaned)
        names = list(cleaned)
        for index, name in enumerate(cleaned):
            if cleaned.count(name) > 1:
                numbered = f"{name}_{index + 1}"
                while numbered in taken:
                    numbered += "_"
                taken.add(numbered)
                names[index] = numbered
        return [f"{self.name}__{name}" for name in names]

    @property
    def gap_name(self) -> str:
        """Name of the table of times since an event."""
        return f"{self.name}__gap"

    @property
    def derived_names(self) -> list[str]:
        """Names of the events, and of the times since them."""
        return [*self.event_names, *([self.gap_name] if self.times is not None else [])]

    @property
    def table_names(self) -> list[str]:
        """Names of its own tables: times, and events that no target shares its table with."""
        own = [] if self.target is not None else self.event_names
        return [*own, *([self.gap_name] if self.times is not None else [])]

    def check_among(self, features: Sequence[Feature]) -> None:
        """Refuses targets that are no features of one id a row."""
        known = {feature.name: feature for feature in features}
        usable = [name for name, feature in known.items() if _has_one_id(feature)]
        for target in self.target or ():
            if target not in usable:
                found = known.get(target)
                what = "which is no feature" if found is None else f"which is of kind {found.kind}"
                raise ValueError(
                    f"feature {self.name!r} has the target {target!r}, {what}; expected one of "
                    f"kind categorical, with the candidate's id: {', '.join(usable) or 'add one'}"
                )

    @field_validator("encoder", mode="before")
    @classmethod
    def _a_name_is_a_kind(cls, raw: Any) -> Any:
        return {"kind": raw} if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _keys_agree(self) -> "SequenceFeature":
        for column in self.columns:
            if self.columns.count(column) > 1:
                raise ValueError(f"columns names {column!r} twice; an event has each column once")
        if self.target is not None and len(self.target) != len(self.columns):
            raise ValueError(
                f"target names {len(self.target)} features and columns {len(self.columns)} "
                "columns, but they go together one by one; name as many"
            )
        if self.encoder.reads_target and self.target is None:
            raise ValueError(
                f"encoder {self.encoder.kind} looks at events from the candidate's side, so it "
                "needs `target`: the features with the candidate's ids; add it, or say encoder: "
                "mean"
            )
        if self.now is not None and self.times is None:
            raise ValueError("now is the time up to which `times` are counted; add times")
        if self.unit is not None and self.times is None:
            raise ValueError("unit is that of `times`; add times, or remove unit")
        return self


def _has_one_id(feature: Feature) -> bool:
    return isinstance(feature, CategoricalFeature) and not isinstance(feature, ListFeature)
