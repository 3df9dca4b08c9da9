"""A world of one, and launchers that do not say where the ranks meet."""

import socket
import subprocess
import sys

from tests.parallel.launch import ROOT, environment

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


def test_ranks_are_counted_from_0():
    code = CODE.replace('os.environ["WORLD_SIZE"] = sys.argv[1]', "")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment(2, 2, 1),
    )
    assert "RANK is 2, but WORLD_SIZE 2: ranks are counted from 0" in done.stdout


_MEETS = """
from mmoe.parallel import run_as_rank
run_as_rank.MEETING, run_as_rank._SECONDS_MORE = 1, 0
run_as_rank.run_as_rank(lambda: None, [])
"""


def test_another_program_on_the_port_does_not_keep_a_rank_waiting():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", _MEETS],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment(1, 2, port),
            timeout=60,
        )
    assert done.returncode == 2
    where = f"127.0.0.1:{port}"
    assert done.stderr.startswith(f"mmoe: error: rank 1 of 2: the ranks cannot meet at {where}")
    assert len(done.stderr.splitlines()) == 1
