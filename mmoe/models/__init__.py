"""Models: each a short file of settings for `MultiGateMixture`; `build_network` finds them."""

from mmoe.models.network import GateRecord, Level, MixtureNetwork, NetworkOutput
from mmoe.models.ranker import Ranker
from mmoe.models.sections import build_network

__all__ = ["GateRecord", "Level", "MixtureNetwork", "NetworkOutput", "Ranker", "build_network"]
