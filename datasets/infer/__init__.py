"""A first config out of the data itself: `infer_config`, for `mmoe init` and the estimator."""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.datasets.infer.commented_yaml import write_commented_yaml
    from mmoe.datasets.infer.config import infer_config

__all__ = [
    "infer_config",
    "write_commented_yaml",
]

__getattr__ = lazily(
    __name__,
    {
        "commented_yaml": ["write_commented_yaml"],
        "config": ["infer_config"],
    },
)
