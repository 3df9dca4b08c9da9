"""Starting and ending as one of many ranks: rendezvous, process group, cores, watch, restarts."""
