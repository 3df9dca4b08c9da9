"""`ScoreConfig`."""

from pydantic import Field, field_validator

from mmoe.config.base import Name, Strict
from mmoe.config.scoring.expectation import expectations_of


class ScoreConfig(Strict):
    """What `mmoe score` does by itself; its options go before it."""

    fused: dict[Name, str] = Field(
        default_factory=dict,
        description="further columns, by name: expressions over tasks and columns of the input, "
        'such as `value: "click^0.7 * purchase"`',
    )
    expect: list[str] = Field(
        default_factory=list,
        description="what has to hold before scores are published, such as `unseen(user_id) < "
        "0.2`; `usual` stands for what most nights hold; `--expect` replaces them",
    )

    @field_validator("expect")
    @classmethod
    def _can_be_read(cls, texts: list[str]) -> list[str]:
        expectations_of(texts)
        return texts
