"""A world of one, and launchers that do not say where the ranks meet."""

import subprocess
import sys

CODE = """
import os, sys
os.environ["WORLD_SIZE"] = sys.argv[1]
import torch.distributed as dist
from mmoe.parallel import ensure_process_group
try:
    ensure_process_group()
    ensure_process_group()
    print(dist.get_world_size(), dist.get_backend())
except ValueError as error:
    print(error)
"""


def _run(world: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE, world], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_one_process_is_a_gloo_world_of_one():
    assert _run("1") == "1 gloo"


def test_several_processes_need_a_launcher():
    assert "WORLD_SIZE is 2, but RANK is not set" in _run("2")
