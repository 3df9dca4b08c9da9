"""What one asks of a machine with a GPU: is it right, how fast is it; `python -m` runs it.

`__main__.py` reads the command line, lists the stages and their clocks, and says what is known in
at most 100 lines; `record.py` runs each item of a stage in a process with a clock, and keeps what
is known, line by line. The other files are what the processes do.
"""
