"""`--profile`: where the time of a training step goes, by part and by operator.

`TrainingProfile` records steps, `part` marks what of a step is going on.
"""
