"""Dispatchers over several hosts: network namespaces of this machine, joined by shaped links."""
