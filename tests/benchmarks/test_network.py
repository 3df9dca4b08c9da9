"""`benchmarks.network` in small: hosts come and go, and links carry what they are set to."""

import subprocess

import pytest

from benchmarks.network import namespaces
from benchmarks.network.bandwidth import check_bandwidth
from benchmarks.network.namespaces import host_network, why_not
from benchmarks.network.world import network_world

needs_hosts = pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}")


def _namespaces() -> list[str]:
    return namespaces._named(namespaces.PREFIX)


def test_what_is_missing_is_one_line(monkeypatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None)
    assert why_not() == "no ip and no tc: install iproute2"


@needs_hosts
def test_hosts_reach_each_other_and_are_removed_after_an_error():
    before = set(_namespaces())

    def fail() -> None:
        with host_network(2) as network:
            network.shape(1.0)
            code = "import socket; socket.create_server(('10.77.0.2', 80)).accept()"
            with subprocess.Popen([*network.inside(1), "python3", "-c", code]) as server:
                code = (
                    "import socket, time\nfor _ in range(100):\n"
                    "    try: socket.create_connection(('10.77.0.2', 80)); break\n"
                    "    except OSError: time.sleep(0.1)\nelse: raise SystemExit(1)"
                )
                subprocess.run([*network.inside(0), "python3", "-c", code], check=True)
                assert server.wait(10) == 0
            assert len(set(_namespaces()) - before) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert set(_namespaces()) <= before


@needs_hosts
def test_leftovers_of_dead_runs_are_removed():
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    name = f"{namespaces.PREFIX}-{dead.pid}-h0"
    subprocess.run(["ip", "netns", "add", name], check=True)
    with host_network(1):
        assert name not in _namespaces()


@needs_hosts
@pytest.mark.slow
def test_a_link_carries_what_it_is_set_to():
    with network_world(2, 1, 1.0) as world:
        slow = check_bandwidth(world, 0.1)
        assert 0.01 < slow < 0.105
        assert check_bandwidth(world, 0.4) > slow  # even beside other programs
    assert not [name for name in _namespaces() if name.startswith(world.network.name)]
