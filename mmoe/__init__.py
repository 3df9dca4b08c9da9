"""Multi-task ranking with Multi-gate Mixture-of-Experts.

Names are imported on first use: `import mmoe` stays quick and pulls in neither torch nor torchrec.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmoe import register
    from mmoe.config import RunConfig, load_config
    from mmoe.integrations.sklearn import MultiTaskRanker
    from mmoe.mixture import MultiGateMixture
    from mmoe.process_settings import tune_process
    from mmoe.score import load

__version__ = "0.1.0"

_HOMES = {
    "MultiGateMixture": "mmoe.mixture",
    "MultiTaskRanker": "mmoe.integrations.sklearn",
    "RunConfig": "mmoe.config",
    "load": "mmoe.score",
    "load_config": "mmoe.config",
    "tune_process": "mmoe.process_settings",
}

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


def __getattr__(name: str) -> Any:
    if name == "register":
        return import_module("mmoe.register")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mmoe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
