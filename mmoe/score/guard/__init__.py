"""What rows and scores are like, counted while they pass, and judged before they are published."""
