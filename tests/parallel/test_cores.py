"""Ranks of one machine keep to cores of their own."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from mmoe.parallel.launch import cores
from mmoe.parallel.launch.cores import bind_to_own_cores, share_of_cores

CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
# Of all threads, one of which is older than the binding
PROGRAM = """
import json, os, sys, threading
import mmoe
mmoe.tune_process()
import torch.distributed as dist
threading.Thread(target=threading.Event().wait, daemon=True).start()
from mmoe.parallel import ensure_process_group, from_all
from mmoe.parallel.launch.cores import bind_to_own_cores
ensure_process_group(60)
bind_to_own_cores(sys.argv[1] == "True")
mine = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]
everyone = from_all(mine)
if os.environ["RANK"] == "0":
    print(json.dumps(everyone))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True, name="topology")
def _topology(monkeypatch):
    """Processors that are cores of their own, unless a test says otherwise."""
    monkeypatch.setattr(cores, "_core_of", lambda cpu: (0, cpu))


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_core_is_one_ranks_alone(count, ranks):
    shares = [share_of_cores(range(count), ranks, place) for place in range(ranks)]
    if count < ranks:
        assert shares == [[]] * ranks
    else:
        assert sorted(chain(*shares)) == list(range(count))
        sizes = [len(share) for share in shares]
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


def test_threads_of_a_core_and_cores_of_a_socket_stay_together(monkeypatch):
    # Two sockets of two cores of two threads, numbered as Linux does: first threads first
    monkeypatch.setattr(cores, "_core_of", lambda cpu: (cpu % 4 // 2, cpu % 2))
    assert share_of_cores(range(8), 2, 0) == [0, 4, 1, 5]
    assert share_of_cores(range(8), 4, 3) == [3, 7]
    assert [share_of_cores(range(8), 3, place) for place in range(3)] == [
        [0, 4],
        [1, 5],
        [2, 6, 3, 7],
    ]
    assert share_of_cores(range(8), 5, 4) == [3, 7]  # more ranks than cores: threads


def test_a_machine_that_tells_nothing_of_its_processors(monkeypatch):
    monkeypatch.undo()
    assert share_of_cores([10**6, 10**6 + 1], 2, 1) == [10**6 + 1]


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ({}, {4, 5, 6, 7}),
        ({"wanted": False}, None),
        ({"tuned": False}, None),
        ({"nccl": True}, None),
        ({"other": [0, 1, 2, 3]}, None),  # bound by its launcher
        ({"other": []}, None),  # not to be bound
        ({"LOCAL_WORLD_SIZE": "1"}, None),
        ({"LOCAL_WORLD_SIZE": ""}, None),
        ({"LOCAL_WORLD_SIZE": "9"}, None),  # more than there are
        ({"LOCAL_RANK": "5"}, None),
    ],
)
def test_which_ranks_are_bound(change, bound, monkeypatch):
    settings = {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", **change}
    other = settings.pop("other", list(range(8)))  # the first rank of the second machine
    wanted = settings.pop("wanted", True)
    for name, value in {"is_tuned": settings.pop("tuned", True), "has_joined": True,
                        "uses_nccl": settings.pop("nccl", False), "rank": 3,
                        "world_size": 4}.items():  # fmt: skip
        monkeypatch.setattr(cores, name, lambda value=value: value)
    told = []
    monkeypatch.setattr(cores, "from_all", lambda mine: told.append(mine) or [[], [], other, mine])
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    found = []
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda _, cpus: found.append(set(cpus)), raising=False
    )
    bind_to_own_cores(wanted)
    assert all(cpus == bound for cpus in found)
    assert bool(found) == (bound is not None and Path("/proc/self/task").is_dir())
    assert len(told) == change.get("tuned", True)  # by each, or another would wait for it


@pytest.mark.skipif(len(CORES) < 2, reason="one core, or a system without affinity")
@pytest.mark.parametrize("wanted", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ranks_of_torchrun_are_bound_with_all_their_threads(wanted, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", program]
    done = subprocess.run([*command, str(wanted)], capture_output=True, timeout=180)
    assert done.returncode == 0, done.stderr.decode()
    ranks = json.loads(done.stdout)
    for threads in ranks:
        assert len(threads) >= 2 and all(found == threads[0] for found in threads)
    first, second = (set(threads[0]) for threads in ranks)
    if not wanted:
        assert first == second == CORES
    else:
        assert first and second and not first & second and first | second == CORES
