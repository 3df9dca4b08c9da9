"""What a change of the structure must not change: weights, metrics, scores, refusals, to the bit."""
