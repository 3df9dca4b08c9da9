"""The folder of a run that begins or goes on: whose it is, and which rows it was trained on.

`RunClaim` is the right to write there, `RunData` and `ResumedData` compare rows with what they
were, `same_on_all_ranks` and its kin see to it that all ranks begin alike.
"""
