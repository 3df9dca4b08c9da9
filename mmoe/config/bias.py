"""`BiasConfig`: a shallow tower for what belongs to the display and not to the item (position)."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr, model_validator

from mmoe.config.base import Name, Strict
from mmoe.config.features import Feature, ListFeature, SequenceFeature, VectorFeature
from mmoe.config.gates import Width


class BiasConfig(Strict):
    """A shallow tower over features of the display, such as the position of an impression.

    Its logit is added to a task's own in training, and left out or fixed when rows are scored. No
    expert, gate, interaction or wide part reads its features.
    """

    features: list[Name] = Field(
        min_length=1, description="names of features, which the tower alone then reads"
    )
    tasks: list[Name] | None = Field(
        default=None, description="whose logits it is added to; null: all"
    )
    hidden: list[Width] = Field(
        default=[16], description="width of each layer; []: linear, one number an id"
    )
    dropout: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="share of the rows of each training batch whose logit of the tower is left "
        "out, so that the rest of the model learns to do without it",
    )
    scoring: Literal["drop", "fixed"] = Field(
        default="drop",
        description="drop: scores are without the tower's logit, and none of its columns is read; "
        "fixed: every row is scored as if shown as `at` says",
    )
    at: dict[str, StrictInt | StrictFloat | StrictStr] = Field(
        default={},
        description="fixed: column → the value that every row has when it is scored; the column "
        "itself is not read then",
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> "BiasConfig":
        for key, names in (("features", self.features), ("tasks", self.tasks or [])):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{key} names {name!r} twice; remove one of them")
        if self.tasks == []:
            raise ValueError("tasks is empty, so nothing would be added; name a task, or remove it")
        if self.scoring == "fixed" and not self.at:
            raise ValueError(
                "scoring is fixed, but at says no value; write such as at: {position: 1}"
            )
        if self.scoring == "drop" and self.at:
            raise ValueError("at has no effect with scoring drop; set scoring: fixed, or remove at")
        return self

    def check(self, features: Sequence[Feature], tasks: Sequence[str]) -> None:
        """Refuses names that a run has not, and values that cannot be fixed.

        Args:
            features: All of the run.
            tasks: Names of its tasks.

        Raises:
            ValueError: With the key of `model.bias` and its mend.
        """
        known = [feature.name for feature in features]
        for name in self.features:
            if name not in known:
                raise ValueError(
                    f"model.bias.features names {name!r}, but there is no such feature under "
                    f"`features`; there: {', '.join(known)}"
                )
        if not set(known) - set(self.features):
            raise ValueError(
                "model.bias.features names all features, so that experts would have none to read; "
                "leave out those of users and items"
            )
        for name in self.tasks or ():
            if name not in tasks:
                raise ValueError(
                    f"model.bias.tasks names {name!r}, but there is no such task; tasks: "
                    f"{', '.join(tasks)}"
                )
        self._check_sequences(features)
        self._check_fixed(features)

    def _check_sequences(self, features: Sequence[Feature]) -> None:
        """Refuses sequences, which experts read, and their targets, which they look at."""
        for feature in features:
            if not isinstance(feature, SequenceFeature):
                continue
            if feature.name in self.features:
                raise ValueError(
                    f"model.bias.features names {feature.name!r}, which is of kind sequence: what "
                    "somebody did is no part of the display; remove it there"
                )
            for target in feature.target or ():
                if target in self.features:
                    raise ValueError(
                        f"model.bias.features names {target!r}, but it is a target of feature "
                        f"{feature.name!r} (sequence), which experts read; remove it in one place"
                    )

    def _check_fixed(self, features: Sequence[Feature]) -> None:
        own = [feature for feature in features if feature.name in self.features]
        columns = [column for feature in own for column in feature.source_columns]
        for feature in features:
            read = [column for column in feature.source_columns if column in self.at]
            if read and feature.name not in self.features:
                raise ValueError(
                    f"model.bias.at fixes {read[0]!r}, but feature {feature.name!r}, which is not "
                    "under model.bias.features, reads it too; remove that feature"
                )
        for column in self.at:
            if column not in columns:
                raise ValueError(
                    f"model.bias.at names {column!r}, which no feature of model.bias.features "
                    f"reads; their columns: {', '.join(columns)}"
                )
        for feature in own:
            left = [column for column in feature.source_columns if column not in self.at]
            fixed = [column for column in feature.source_columns if column in self.at]
            if fixed and left:
                raise ValueError(
                    f"model.bias.at fixes {fixed[0]!r}, but feature {feature.name!r} also reads "
                    f"{left[0]!r}; give that a value too"
                )
            if fixed and isinstance(feature, ListFeature | VectorFeature):
                raise ValueError(
                    f"model.bias.at fixes {fixed[0]!r}, but feature {feature.name!r} is of kind "
                    f"{feature.kind}; only features of one value a row can be fixed"
                )

    def unread(self, features: Sequence[Feature]) -> set[str]:
        """Returns the names of features whose columns are not read when rows are scored."""
        if self.scoring == "drop":
            return set(self.features)
        return {
            feature.name
            for feature in features
            if feature.name in self.features and set(feature.source_columns) <= self.at.keys()
        }
