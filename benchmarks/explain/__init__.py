"""What `mmoe explain` costs, and whether its numbers are right."""
