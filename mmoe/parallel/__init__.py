"""Process groups. Dispatchers over many ranks will live here."""

from mmoe.parallel.process_group import ensure_process_group

__all__ = ["ensure_process_group"]
