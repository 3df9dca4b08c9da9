"""Data sets that a recipe names: Census-Income, Hillstrom, and the synthetic funnel.

Each module has `load`, which returns splits, and `files`, what it reads; `generate_funnel` draws
the synthetic log.
"""
