"""Gates: how much of which expert each task gets.

All have one contract, `Gate`: what each gate reads and what it may see go in; weights or picks come
out, and the auxiliary losses with them. Learned gates share their options, `GateOptions`.
"""

from mmoe.mixture.gates.contract import Gate, GateOutput
from mmoe.mixture.gates.cosine import CosineGate
from mmoe.mixture.gates.dselect_k import DSelectKGate
from mmoe.mixture.gates.fixed import FixedGate
from mmoe.mixture.gates.gshard import GShardGate
from mmoe.mixture.gates.learned import GateOptions
from mmoe.mixture.gates.noisy_top_k import NoisyTopKGate
from mmoe.mixture.gates.select import Selection
from mmoe.mixture.gates.sigmoid import SigmoidGate, update_biases
from mmoe.mixture.gates.softmax import SoftmaxGate
from mmoe.mixture.gates.static import StaticGate
from mmoe.mixture.gates.switch import SwitchGate
from mmoe.mixture.gates.top_k import TopKGate

__all__ = [
    "CosineGate",
    "DSelectKGate",
    "FixedGate",
    "GShardGate",
    "Gate",
    "GateOptions",
    "GateOutput",
    "NoisyTopKGate",
    "Selection",
    "SigmoidGate",
    "SoftmaxGate",
    "StaticGate",
    "SwitchGate",
    "TopKGate",
    "update_biases",
]
