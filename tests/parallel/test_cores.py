"""Ranks of one machine keep to cores of their own."""

import json
import os
import subprocess
import sys
from itertools import chain

import pytest

from mmoe.parallel import cores
from mmoe.parallel.cores import SWITCH, share_of_cores

CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
needs_two_cores = pytest.mark.skipif(
    len(CORES) < 2, reason="one core, or a system without affinity"
)
# Of all threads, one of which is older than the binding
PROGRAM = """
import json, os, threading
waiting = threading.Event()
threading.Thread(target=waiting.wait, daemon=True).start()
if {bound}:
    os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
from mmoe.parallel.cores import bind_to_own_cores
bind_to_own_cores()
print(json.dumps([sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]))
"""


@pytest.fixture(autouse=True, name="flat")
def _flat(monkeypatch):
    """A machine whose processors have one thread each, unless a test says otherwise."""
    monkeypatch.setattr(cores, "_where", lambda cpu: (0, cpu, cpu))


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
    monkeypatch.setattr(cores, "_where", lambda cpu: (cpu % 4 // 2, cpu % 2, cpu))
    assert share_of_cores(range(8), 2, 0) == [0, 4, 1, 5]
    assert share_of_cores(range(8), 4, 3) == [3, 7]


def test_a_machine_that_tells_nothing_of_its_processors(monkeypatch):
    monkeypatch.undo()
    assert share_of_cores([10**6, 10**6 + 1], 2, 1) == [10**6 + 1]


@needs_two_cores
def test_a_rank_is_bound_with_all_its_threads():
    shares = [_bound(place) for place in (0, 1)]
    for threads in shares:
        assert len(threads) >= 2 and all(found == threads[0] for found in threads)
    first, second = (set(threads[0]) for threads in shares)
    assert not first & second and first | second == CORES


@needs_two_cores
def test_ranks_that_are_bound_already_or_may_not_be_stay_where_they_are():
    mine = [min(CORES)]
    assert mine in _bound(1, bound=True)
    for settings in ({SWITCH: "0"}, {"LOCAL_WORLD_SIZE": "1"}, {"LOCAL_WORLD_SIZE": "9999"}):
        assert all(set(found) == CORES for found in _bound(0, **settings))


def _bound(place, bound=False, **settings):
    """The cores of every thread of a rank of two."""
    ours = {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(place), **settings}
    env = {name: value for name, value in os.environ.items() if name != SWITCH} | ours
    code = PROGRAM.format(bound=bound)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
