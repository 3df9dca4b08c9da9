"""The folder of a run that begins or goes on: whose it is, and which rows it was trained on."""
