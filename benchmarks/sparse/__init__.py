"""When a large sparse pool of experts pays: logs with a known truth, at equal time."""
