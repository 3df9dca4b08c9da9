"""Checkpoints: a folder of steps in safetensors, written and read by any number of ranks."""

from mmoe.checkpoint.folder import CheckpointFolder
from mmoe.checkpoint.saver import CheckpointSaver

__all__ = ["CheckpointFolder", "CheckpointSaver"]
