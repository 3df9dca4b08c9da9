"""A world of one, and launchers that do not say where the ranks meet."""

import os
import socket
from collections.abc import Mapping

import torch.distributed as dist

from mmoe.parallel import training_group
from tests.forked import Forked
from tests.ranks import environment, started

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


def _run(*program: str, environment: Mapping[str, str] = os.environ) -> tuple[int, str, str]:
    started = Forked(["-c", *program], environment=environment, number=0)
    out, err = started.communicate(60)
    return started.wait(), out, err


def test_one_process_is_a_gloo_world_of_one_and_several_need_a_launcher():
    assert _run(CODE, "1") == (0, "1 gloo\n", "")
    assert "WORLD_SIZE is 2, but RANK is not set" in _run(CODE, "2")[1]
    code = CODE.replace('os.environ["WORLD_SIZE"] = sys.argv[1]', "")
    _, out, _ = _run(code, environment=environment(2, 2, 1))
    assert "RANK is 2, but WORLD_SIZE 2: ranks are counted from 0" in out


_MEETS = """
from mmoe.parallel.launch import run_as_rank
run_as_rank.RENDEZVOUS_SECONDS, run_as_rank._SECONDS_MORE = 1, 0
run_as_rank.run_as_rank(lambda: None, [])
"""


def test_another_program_on_the_port_does_not_keep_a_rank_waiting():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, err = _run(_MEETS, environment=environment(1, 2, port))
    assert code == 2
    where = f"127.0.0.1:{port}"
    assert err.startswith(f"mmoe: error: rank 1 of 2: the ranks cannot meet at {where}")
    assert len(err.splitlines()) == 1


_ALL = """
import os
from mmoe.parallel import ensure_process_group, from_all
ensure_process_group(30)
ensure_process_group(40)
print(from_all(f"rank {os.environ['RANK']}"))
"""


def test_ranks_meet_where_the_launcher_says():
    with started(["-c", _ALL], 2) as ranks:
        told = [rank.communicate(60) for rank in ranks]
    assert [out for out, _ in told] == ["['rank 0', 'rank 1']\n"] * 2, told


def test_runs_of_two_threads_share_a_world_until_the_last_ends():
    if dist.is_initialized():  # of another test
        dist.destroy_process_group()
    first, second = training_group(), training_group()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert dist.get_world_size() == 1
    second.__exit__(None, None, None)
    assert not dist.is_initialized()
    with training_group():
        assert dist.is_initialized()
    assert not dist.is_initialized()
