"""Multi-task ranking with Multi-gate Mixture-of-Experts.

Names are imported on first use: `import mmoe` stays quick and pulls in neither torch nor torchrec.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe import register
    from mmoe.config import RunConfig, load_config
    from mmoe.integrations.sklearn import MultiTaskRanker
    from mmoe.mixture import MultiGateMixture
    from mmoe.process_settings import tune_process
    from mmoe.score import load

__version__ = "0.1.0"

__all__ = [
    "MultiGateMixture",
    "MultiTaskRanker",
    "RunConfig",
    "__version__",
    "load",
    "load_config",
    "register",
    "tune_process",
]


_named = lazily(
    __name__,
    {
        "config": ["RunConfig", "load_config"],
        "integrations.sklearn": ["MultiTaskRanker"],
        "mixture": ["MultiGateMixture"],
        "process_settings": ["tune_process"],
        "score": ["load"],
    },
)


def __getattr__(name: str) -> Any:
    return import_module("mmoe.register") if name == "register" else _named(name)


def __dir__() -> list[str]:
    return sorted(__all__)
