"""What one asks of a machine with a GPU: is it right, how fast is it; `python -m` runs it.

`__main__.py` reads the command line, `stages.py` lists the stages and their clocks, `running.py`
runs each item of a stage in a process with a clock, `record.py` keeps what is known, line by line,
`summary.py` says it in at most 100 lines. The other files are what the processes do.
"""
