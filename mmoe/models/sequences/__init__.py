"""What the network makes of sequences: an encoder a file, and `SequenceInputs`, which has them."""
