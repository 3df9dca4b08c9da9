"""Several gates over one pool of experts: the layer that every model here is a setting of.

Works on plain tensors and needs nothing of the rest of the library but `mmoe.ops`.
"""

from mmoe.mixture.execution import Execution, Work, choose_execution
from mmoe.mixture.experts.contract import Pool
from mmoe.mixture.experts.mixed import MixedExperts
from mmoe.mixture.experts.mlp import MLP
from mmoe.mixture.experts.mlp_experts import MLPExperts, mlp_experts
from mmoe.mixture.experts.pool import ExpertPool
from mmoe.mixture.experts.sliced import cut_into_slices, join_slices
from mmoe.mixture.gates import (
    CosineGate,
    DSelectKGate,
    FixedGate,
    Gate,
    GateOptions,
    GateOutput,
    GShardGate,
    NoisyTopKGate,
    Selection,
    SigmoidGate,
    SoftmaxGate,
    StaticGate,
    SwitchGate,
    TopKGate,
    update_biases,
)
from mmoe.mixture.moe import MoE, MoEOutput
from mmoe.mixture.moves import LoadReport, load_experts
from mmoe.mixture.multi_gate import MixtureOutput, MultiGateMixture, Unmixed
from mmoe.mixture.routing.capacity import Capacity
from mmoe.mixture.routing.dispatcher import Dispatcher, DispatchPlan, LocalDispatcher
from mmoe.mixture.statistics import MixtureStatistics
from mmoe.mixture.traits import DispatcherTraits, GateTraits, PoolTraits

__all__ = [
    "MLP",
    "Capacity",
    "CosineGate",
    "DSelectKGate",
    "DispatchPlan",
    "Dispatcher",
    "DispatcherTraits",
    "Execution",
    "ExpertPool",
    "FixedGate",
    "GShardGate",
    "Gate",
    "GateOptions",
    "GateOutput",
    "GateTraits",
    "LoadReport",
    "LocalDispatcher",
    "MLPExperts",
    "MixedExperts",
    "MixtureOutput",
    "MixtureStatistics",
    "MoE",
    "MoEOutput",
    "MultiGateMixture",
    "NoisyTopKGate",
    "Pool",
    "PoolTraits",
    "Selection",
    "SigmoidGate",
    "SoftmaxGate",
    "StaticGate",
    "SwitchGate",
    "TopKGate",
    "Unmixed",
    "Work",
    "choose_execution",
    "cut_into_slices",
    "join_slices",
    "load_experts",
    "mlp_experts",
    "update_biases",
]
