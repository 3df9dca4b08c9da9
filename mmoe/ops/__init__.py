"""Operators of the mixture: pick, plan the routes, gather, compute, combine for all gates at once.

Those of an exchange between ranks are `outbound_plan`, `pack_rows`, `decode_picks`, `unpack_rows`,
`return_plan`, `pack_returns` and `mix_returns`, in this order; `mmoe.parallel` puts them together.

Every operator has a specification in `mmoe.ops.reference` or `exchange_reference`, and a CPU and a
CUDA kernel in the extension `mmoe._C`, and works under `torch.compile`, `torch.export`, `no_grad`
and `inference_mode`. Autocast leaves them alone: outputs
have the dtype of the expert outputs, sums are taken in float32.
A new one is specified, then a schema, shapes and gradient here (`gate_mm` in `gating.py` is a
short one), then kernels in `csrc/`.
Not supported, as PyTorch lacks them for custom operators: forward-mode AD, whose tangents are lost
without an error, and `torch.func.grad` and `torch.vmap`, which raise.
"""

from mmoe.ops._checks import FLOAT_DTYPES, accumulate_dtype, host_is_near
from mmoe.ops._library import REBUILD, ExtensionStatus, extension_status
from mmoe.ops.dispatch import (
    RoutePlan,
    dense_combine,
    gated_combine,
    permute,
    route_plan,
    unpermute,
)
from mmoe.ops.exchange import (
    InboundPicks,
    OutboundPlan,
    ReturnPlan,
    RowsFormat,
    decode_picks,
    mix_returns,
    outbound_plan,
    pack_returns,
    pack_rows,
    pack_rows_backward,
    return_plan,
    unpack_rows,
    unpack_rows_backward,
)
from mmoe.ops.gating import Softmax, gate_mm, joint_select, row_softmax, topk_gate
from mmoe.ops.mixed_towers import mixed_towers
from mmoe.ops.products import (
    FusedActivation,
    dense_mlp,
    dense_mm,
    gathered_mm,
    grouped_mm,
    shared_mm,
)
from mmoe.ops.target_attention import TargetAttention, target_attention

__all__ = [
    "FLOAT_DTYPES",
    "REBUILD",
    "ExtensionStatus",
    "FusedActivation",
    "InboundPicks",
    "OutboundPlan",
    "ReturnPlan",
    "RoutePlan",
    "RowsFormat",
    "Softmax",
    "TargetAttention",
    "accumulate_dtype",
    "decode_picks",
    "dense_combine",
    "dense_mlp",
    "dense_mm",
    "extension_status",
    "gate_mm",
    "gated_combine",
    "gathered_mm",
    "grouped_mm",
    "host_is_near",
    "joint_select",
    "mix_returns",
    "mixed_towers",
    "outbound_plan",
    "pack_returns",
    "pack_rows",
    "pack_rows_backward",
    "permute",
    "return_plan",
    "route_plan",
    "row_softmax",
    "shared_mm",
    "target_attention",
    "topk_gate",
    "unpack_rows",
    "unpack_rows_backward",
    "unpermute",
]
