"""What the ranks of a training tell each other, what that took, and who holds what."""
