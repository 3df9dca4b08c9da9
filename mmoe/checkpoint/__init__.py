"""Checkpoints: a folder of steps in safetensors, written and read by any number of ranks.

`CheckpointFolder` finds steps and their `StoredTensors`, `CheckpointSaver` writes them in the
background, `load_weights` and `load_network` put them into a model.
"""

from mmoe.checkpoint.folder import CheckpointFolder, StoredTensors
from mmoe.checkpoint.saver import CheckpointSaver
from mmoe.checkpoint.weights import load_network, load_weights

__all__ = ["CheckpointFolder", "CheckpointSaver", "StoredTensors", "load_network", "load_weights"]
