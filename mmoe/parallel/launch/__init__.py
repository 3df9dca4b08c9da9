"""Starting and ending as one of many ranks: rendezvous, process group, cores, watch, restarts.

`launcher.py` alone reads the launcher's variables, `ensure_process_group` joins the ranks, and
`run_as_rank` runs a command as one of them; `mmoe.parallel` has the names for other rooms.
"""
