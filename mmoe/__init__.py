"""Multi-task ranking with Multi-gate Mixture-of-Experts.

Names are imported on first use: `import mmoe` stays quick and pulls in neither torch nor torchrec.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmoe.config import RunConfig, load_config
    from mmoe.integrations.sklearn import MultiTaskRanker
    from mmoe.mixture import MultiGateMixture

__version__ = "0.1.0"

# Turns of an OpenMP thread at a barrier before it sleeps (GNU's default: 300,000). Where other jobs
# share the cores, the default spins away the very time it waits for; see benchmarks/README.md. Read
# when torch is loaded, so it must be said before; a policy of the user's own would be overruled.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

_HOMES = {
    "MultiGateMixture": "mmoe.mixture",
    "MultiTaskRanker": "mmoe.integrations.sklearn",
    "RunConfig": "mmoe.config",
    "load_config": "mmoe.config",
}

__all__ = ["MultiGateMixture", "MultiTaskRanker", "RunConfig", "__version__", "load_config"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mmoe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
