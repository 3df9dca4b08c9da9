"""What `mmoe explain` costs, whether its numbers are right, and what its affinity predicts."""
