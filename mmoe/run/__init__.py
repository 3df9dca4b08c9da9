"""A run's folder: what it holds, who may write in it, and what a run says while it goes on.

`RunDirectory` names its files, `open_run` opens one, also at an address, a `FolderClaim` is the
right to write there, a `Reporter` tells the user; `write_json` and `write_text` replace a file at
once or not at all.
"""

from mmoe.run.atomic_files import read_json, write_json, write_text
from mmoe.run.console import ConsoleReporter, Reporter, SilentReporter, Tracker
from mmoe.run.directory import RunDirectory
from mmoe.run.folder_claim import FolderClaim, FolderMark
from mmoe.run.host_cache import open_run

__all__ = [
    "ConsoleReporter",
    "FolderClaim",
    "FolderMark",
    "Reporter",
    "RunDirectory",
    "SilentReporter",
    "Tracker",
    "open_run",
    "read_json",
    "write_json",
    "write_text",
]
