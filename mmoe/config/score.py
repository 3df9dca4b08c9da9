"""What `mmoe score` writes beside the predictions."""

from pydantic import Field

from mmoe.config.base import Name, Strict


class ScoreConfig(Strict):
    """What `mmoe score` does by itself; its options go before it."""

    fused: dict[Name, str] = Field(
        default_factory=dict,
        description="further columns, by name: expressions over tasks and columns of the input, "
        'such as `value: "click^0.7 * purchase"`',
    )
