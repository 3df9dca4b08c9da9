"""Operators of the mixture: plan the routes, combine expert outputs for all gates at once.

Every operator has a specification in `mmoe.ops.reference`, a CPU and a CUDA kernel in the extension
`mmoe._C`, and works under `torch.compile`, `torch.export`, `no_grad` and `inference_mode`. Autocast
leaves them alone: outputs have the dtype of the expert outputs, sums are taken in float32.
"""

from mmoe.ops._library import ExtensionStatus, extension_status
from mmoe.ops.dense_combine import dense_combine
from mmoe.ops.gated_combine import gated_combine
from mmoe.ops.route_plan import RoutePlan, route_plan

__all__ = [
    "ExtensionStatus",
    "RoutePlan",
    "dense_combine",
    "extension_status",
    "gated_combine",
    "route_plan",
]
