"""Several gates over one pool of experts: the layer that every model here is a setting of.

Works on plain tensors and needs nothing of the rest of the library but `mmoe.ops`.
"""

from mmoe.mixture.dispatcher import Dispatcher, DispatchPlan, LocalDispatcher
from mmoe.mixture.execution import choose_execution
from mmoe.mixture.experts import ExpertPool, mlp_experts
from mmoe.mixture.gates import FixedGate, GateOutput, SoftmaxGate, TopKGate
from mmoe.mixture.mlp import MLP
from mmoe.mixture.multi_gate import MixtureOutput, MultiGateMixture

__all__ = [
    "MLP",
    "DispatchPlan",
    "Dispatcher",
    "ExpertPool",
    "FixedGate",
    "GateOutput",
    "LocalDispatcher",
    "MixtureOutput",
    "MultiGateMixture",
    "SoftmaxGate",
    "TopKGate",
    "choose_execution",
    "mlp_experts",
]
