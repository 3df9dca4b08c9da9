"""Ranks of a check: what they measure on gloo, and that none outlives its clock."""

import subprocess
import sys
import time

import pytest

from benchmarks.gpu_check import ranks
from benchmarks.gpu_check.record import MEASURED, Record, machine_name
from benchmarks.gpu_check.running import EXIT_LEFT_OUT


def check(world, path, *options):
    ranks.main([str(world), "--record", str(path), "--device", "cpu", "--small", *options])


@pytest.fixture
def scripts(monkeypatch):
    """`scripts(...)`: what each rank runs instead."""

    def use(*texts):
        started = []

        def start(rank, settings, folder):
            with ranks._output(folder, rank).open("w") as output:
                command = [sys.executable, "-u", "-c", texts[rank]]
                started.append(subprocess.Popen(command, stdout=output, stderr=output))
            return started[-1]

        monkeypatch.setattr(ranks, "_start", start)
        return started

    return use


@pytest.mark.slow
def test_two_ranks_compute_what_one_process_does_and_time_their_messages(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    check(2, tmp_path / "record.jsonl")

    lines = Record(tmp_path / "record.jsonl", machine_name("cpu")).lines()
    assert set(lines) == {"ranks/2/fp32-wire", "ranks/2/bf16-wire"}
    for line in lines.values():
        assert (line["status"], line["backend"]) == (MEASURED, "gloo")
        assert 0 < line["bytes_to_others"] < line["bytes_of_a_step"]
        assert set(line["milliseconds"]) == {"mmoe", "all_to_all_single", "whole step"}
    assert lines["ranks/2/fp32-wire"]["difference"] < 1e-5


def test_more_ranks_than_gpus_are_left_out(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        check(3, tmp_path / "record.jsonl")

    assert stop.value.code == EXIT_LEFT_OUT
    assert capsys.readouterr().out == "needs 3 GPUs, one for each rank; 2 here\n"


def test_a_rank_that_fails_ends_those_that_wait_for_it(scripts, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "LAST_WORDS", 0.1)
    started = scripts("import time; time.sleep(60)", "raise SystemExit('it is wrong')")
    began = time.monotonic()

    with pytest.raises(SystemExit) as stop:
        check(2, tmp_path / "record.jsonl")

    assert stop.value.code == "rank 1 of 2: it failed: it is wrong"
    assert time.monotonic() - began < 30
    assert all(rank.poll() is not None for rank in started)


def test_ranks_that_hang_are_ended_by_their_clock(scripts, tmp_path):
    started = scripts(*["print('begins', flush=True); import time; time.sleep(60)"] * 2)

    with pytest.raises(SystemExit) as stop:
        check(2, tmp_path / "record.jsonl", "--seconds", "0.7")

    assert stop.value.code == "rank 0 of 2: its clock of 1 s ended: begins"
    assert all(rank.poll() is not None for rank in started)
