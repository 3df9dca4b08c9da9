"""What it gains that gates share: one choice of experts for all tasks of a row."""
