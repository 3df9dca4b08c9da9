"""Data files: names to files, one reader for each format, and what a file held when it was read."""
