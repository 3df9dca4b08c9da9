"""`python -m mmoe` is the command line."""

from mmoe.cli import main

main()
