"""Sequence encoders, one a file, and `SequenceInputs`, which has them."""
