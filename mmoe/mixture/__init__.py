"""Several gates over one pool of experts: the layer that every model here is a setting of.

Works on plain tensors and needs nothing of the rest of the library but `mmoe.ops`.
"""

from mmoe.mixture.batch_invariant import stable_linear, stable_sigmoid
from mmoe.mixture.capacity import Capacity
from mmoe.mixture.dispatcher import Compute, Dispatcher, DispatchPlan, LocalDispatcher
from mmoe.mixture.execution import Execution, Work, choose_execution
from mmoe.mixture.experts.contract import Pool
from mmoe.mixture.experts.mixed import MixedExperts
from mmoe.mixture.experts.mlp import MLP, MLPExperts
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
from mmoe.mixture.inputs import Inputs
from mmoe.mixture.moe import MoE, MoEOutput
from mmoe.mixture.moves import LoadReport, load_experts
from mmoe.mixture.multi_gate import MixtureOutput, MultiGateMixture, Unmixed
from mmoe.mixture.pytrees import Tree
from mmoe.mixture.statistics import MixtureStatistics
from mmoe.mixture.traits import DispatcherTraits, GateTraits, PoolTraits, traits_of

__all__ = [
    "MLP",
    "Capacity",
    "Compute",
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
    "Inputs",
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
    "Tree",
    "Unmixed",
    "Work",
    "choose_execution",
    "cut_into_slices",
    "join_slices",
    "load_experts",
    "stable_linear",
    "stable_sigmoid",
    "traits_of",
    "update_biases",
]
