"""`benchmarks.network` in small: hosts come and go, and links carry what they are set to."""

import subprocess
from dataclasses import asdict, replace

import pytest
import torch

from benchmarks.network import __main__ as program
from benchmarks.network import hosts, races
from benchmarks.network.hosts import (
    PREFIX,
    _named,
    check_bandwidth,
    host_network,
    network_world,
    shutil,
    why_not,
)
from benchmarks.network.layers import GRID, How, Setting
from benchmarks.network.races import (
    AUTO,
    FIXED,
    LAYER,
    LOAD_LAYER,
    TARGETS,
    _results,
    host_bytes,
    placed,
    raced,
    shadowed,
    two_levels,
)
from benchmarks.parallel.layers import sums_of
from tests.benchmarks.small_bench import small_bench

_WHY_NOT = why_not()  # looked at once: two commands of some ms
needs_hosts = pytest.mark.skipif(_WHY_NOT is not None, reason=f"{_WHY_NOT}")


def _namespaces() -> list[str]:
    return _named(PREFIX)


def test_what_is_missing_is_one_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None)
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
    name = f"{hosts.PREFIX}-{dead.pid}-h0"
    subprocess.run(["ip", "netns", "add", name], check=True)
    with host_network(1):
        assert name not in _namespaces()


@needs_hosts
@pytest.mark.slow
def test_a_link_carries_what_it_is_set_to():
    with network_world(2, 1, 1.0) as world:
        slow = check_bandwidth(world, 0.1)["one_way"]
        assert 0.01 < slow < 0.105
        assert check_bandwidth(world, 0.4)["one_way"] > slow  # even beside other programs
    assert not [name for name in _namespaces() if name.startswith(world.network.name)]


def test_the_grid_is_spread():
    assert len(GRID) == len(set(GRID)) >= 20
    for name in ("batch", "experts", "k", "gates", "gbits", "ranks"):
        assert len({getattr(setting, name) for setting in GRID}) >= 3 - (name == "ranks"), name
    assert all(Setting.of(asdict(setting)) == setting for setting in GRID)


def test_where_hosts_cannot_be_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(program, "why_not", lambda: "network namespaces need root")
    program.main()
    said = capsys.readouterr()
    assert said.err == ("benchmarks.network: nothing measured: network namespaces need root\n")
    assert not said.out


def test_every_key_has_a_race():
    keys = [key for race in program.PROGRAM.races for key in race.keys]
    assert sorted(keys) == sorted(TARGETS)


def test_regret_and_gain_of_a_choice():
    def row(name, best, auto, rows, weights):
        ms = {**dict.fromkeys(FIXED, 100.0), "rows": rows, "weights": weights, AUTO: auto}
        return {"setting": name, "ms": ms, "best": best, "regret": auto / ms[best]}

    rows = [row("a", "rows", 10.0, 10.0, 40.0), row("b", "weights", 11.0, 40.0, 10.0)]
    regret, worst, gain = _results(rows)
    assert regret.spread.median == pytest.approx(1.05)
    assert (worst.spread.median, worst.note) == (pytest.approx(1.1), "b")
    # One mode everywhere: 20 in the geometric mean, over that of 10 and 11
    assert gain.spread.median == pytest.approx(20 / 110**0.5)


def test_what_was_sent_is_what_is_told():
    answer = {"told": 3, "counted": 3, "bound": 2}
    assert sums_of("bytes", [answer, answer]) == {"told": 6, "counted": 6, "bound": 4}
    with pytest.raises(ValueError, match="bytes: expected the 3 bytes that were sent, got 4"):
        sums_of("bytes", [{**answer, "told": 4}])


def test_how_from_and_to_json():
    for raw in ({}, {"shadowed": "all"}, {"shadowed": [1], "chunks": 2, "overlaps": False}):
        how = How(**raw)
        assert How(**how.as_json()).mode == how.mode == How.of(how.mode).mode


@pytest.fixture(name="bench")
def _bench(tmp_path):
    return small_bench(tmp_path, rows=1)


@needs_hosts
@pytest.mark.slow
def test_races_in_small(bench, monkeypatch):
    small = {"batch": 32, "experts": 16}
    monkeypatch.setattr(races, "LAYER", replace(LAYER, **small))
    monkeypatch.setattr(races, "WORLDS", {2: 4 / 3})
    monkeypatch.setattr(races, "LOAD_LAYER", replace(LOAD_LAYER, **small))
    results = [
        *host_bytes(bench),
        *two_levels(bench, per_host=2),
        *shadowed(bench),
        *placed(bench),
    ]
    assert [result.key for result in results] == [
        "hierarchical_bytes_over_bound",
        "hierarchical_gain_2x2",
        "hierarchical_gain_2x2_layer",
        "shadow_gain",
        "placement_gain",
    ]
    assert 1 <= results[0].spread.median < 1.05
    assert all(result.spread.median > 0 for result in results)


@needs_hosts
@pytest.mark.slow
def test_a_mode_is_chosen_and_raced():
    setting = replace(GRID[0], batch=64)
    with network_world(2, 1, 1.0) as world:
        hows = {**FIXED, AUTO: {"auto": True}}
        layer = {"setting": asdict(setting)}
        times = raced(world, layer, hows, 0.0)
        assert set(times.seconds) == set(hows)
        chosen = world.ranks.ask_all(
            "modes", layer=layer, hows={AUTO: {"auto": True}, "rows": {}}, seconds=0.0
        )
    assert len({str(answer) for answer in chosen}) == 1
    assert torch.tensor(list(times.seconds.values())).gt(0).all()
