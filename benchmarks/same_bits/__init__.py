"""What a change of structure must not change: weights, metrics, scores, refusals, to the bit."""
