"""Data sets that a recipe names: Census-Income, Hillstrom, and the synthetic funnel."""
