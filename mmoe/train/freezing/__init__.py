"""A new task on a live model: which parts of an earlier run stay as they score."""
