"""`benchmarks.gpu_check`: words on its command line, and what it does with wrong ones."""

import re

import pytest

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check.record import PASSED, Record, machine_name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nowhere"], "--only: no item of these stages holds nowhere"),
        (["--done", "nowhere.jsonl"], "expected records of older runs, no file is nowhere.jsonl"),
        (["--done", "tests"], "expected records of older runs, no file is tests"),
    ],
)
def test_words_that_mean_nothing_are_refused(capsys, arguments, words):
    for more in ([], ["--dry-run"]):
        with pytest.raises(SystemExit, match="2"):
            gpu_check.main(["--device", "cpu", "--stage", "smoke", *arguments, *more])
        assert words in capsys.readouterr().err


def test_results_that_cannot_be_written_are_told_before_anything_runs(capsys, tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert gpu_check.main(["--device", "cpu", "--stage", "smoke", "--out", str(out)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("gpu-check: --out: expected a folder that can be written to")


def test_a_stage_named_after_another_is_run_too(capsys):
    words = ["--stage", "smoke", "--only", "topk", "--stage", "env", "--only", "described"]
    assert gpu_check.main(["--dry-run", *words]) == 0

    said = capsys.readouterr().out
    assert re.findall("^== ([a-z]+)", said, re.MULTILINE) == ["env", "smoke"]
    assert "smoke topk_gate" in said
    assert "gpu_check.extension" not in said


def test_a_dry_run_knows_what_an_older_record_says(capsys, tmp_path):
    older = Record(tmp_path / "older.jsonl", machine_name("cpu"))
    older.add("smoke/permute", PASSED)
    words = ["--device", "cpu", "--stage", "smoke", "--out", str(tmp_path / "new")]

    assert gpu_check.main(["--dry-run", *words, "--done", str(older.path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "not again" in line]
    assert "smoke permute" in line
    assert not (tmp_path / "new").exists()
