"""Where the CUDA kernels of a check come from, and what setup.py says of a toolkit."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.gpu_check import extension
from benchmarks.gpu_check.record import ROOT, digest

CODE = digest(extension.SOURCES)


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """An extension and its mark in a folder of their own."""
    monkeypatch.setattr(extension, "_has_gpu", lambda: True)
    monkeypatch.setattr(extension, "LIBRARY", tmp_path / "mmoe" / "_C.abi3.so")
    monkeypatch.setattr(extension, "MARK", tmp_path / "build" / "mark.txt")
    (tmp_path / "mmoe").mkdir()
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "_C.abi3.so").write_text("compiled")
    (folder / extension.SAYS).write_text(json.dumps({"code": CODE}))
    return folder


def test_a_bundle_of_these_sources_is_used(paths, monkeypatch, capsys):
    monkeypatch.setattr(extension, "_does_not_run", lambda: "")

    extension.main(["--bundle", str(paths)])

    assert capsys.readouterr().out.splitlines() == ["in place: there is none", "mmoe._C: bundle"]
    assert extension.LIBRARY.read_text() == "compiled"
    extension.main(["--bundle", str(paths)])
    assert capsys.readouterr().out.splitlines() == ["mmoe._C: in place"]


def test_without_a_gpu_nothing_is_replaced(paths, monkeypatch):
    monkeypatch.setattr(extension, "_has_gpu", lambda: False)
    with pytest.raises(SystemExit, match=r"no GPU was found: mmoe/_C\.abi3\.so stays as it is"):
        extension.main(["--bundle", str(paths)])
    assert not extension.LIBRARY.exists()


def test_a_bundle_of_other_sources_is_not(paths, monkeypatch, capsys):
    (paths / extension.SAYS).write_text(json.dumps({"code": "of other sources"}))
    monkeypatch.setattr(extension, "_does_not_run", lambda: "")
    monkeypatch.setattr(extension, "_build", lambda *_: "the build failed: no nvcc")

    with pytest.raises(SystemExit) as stop:
        extension.main(["--bundle", str(paths)])

    assert "no CUDA kernels" in str(stop.value)
    assert "was compiled from other sources" in capsys.readouterr().out
    assert not extension.LIBRARY.exists()


def test_what_does_not_run_is_not_used(paths, monkeypatch, capsys):
    answers = iter(["no kernel image is available", ""])
    monkeypatch.setattr(extension, "_does_not_run", lambda: next(answers))
    monkeypatch.setattr(extension, "_build", lambda *_: "")

    extension.main(["--bundle", str(paths)])

    printed = capsys.readouterr().out.splitlines()
    assert printed[1:] == ["bundle: no kernel image is available", "mmoe._C: built"]


NVCC = """#!/bin/sh
case "$*" in
  *--version*) echo "Cuda compilation tools, release 13.0, V13.0.1" ;;
  *--list-gpu-arch*) printf 'compute_80\\ncompute_90\\n' ;;
  *--dryrun*) echo '#$ TOP=TOOLKIT' >&2 ;;
  *) echo "compiles nothing: $*" >&2; exit 9 ;;
esac
"""


def build(tmp_path, **variables):
    """Setup.py's answer where nvcc is a script that knows its toolkit."""
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text(NVCC.replace("TOOLKIT", str(tmp_path / "toolkit")))
    nvcc.chmod(0o755)
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-temp", str(tmp_path / "objects")],
        cwd=ROOT,
        env={**os.environ, "MMOE_BUILD": "bundle", "CUDA_HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
    )


def test_a_toolkit_without_cudas_runtime_is_one_line(tmp_path):
    done = build(tmp_path)
    assert done.returncode == 1
    assert "mmoe: CUDA's runtime, libcudart, was not found; looked into " in done.stderr
    assert str(tmp_path / "toolkit" / "lib64") in done.stderr


@pytest.mark.parametrize("place", ["lib64", "lib", "targets/x86_64-linux/lib"])
def test_an_unknown_architecture_is_one_line_before_anything_is_compiled(tmp_path, place):
    folder = tmp_path / "toolkit" / place
    folder.mkdir(parents=True)
    (folder / "libcudart_static.a").touch()

    done = build(tmp_path, MMOE_CUDA_ARCHITECTURES="9.0 1.2")

    assert done.returncode == 1
    assert "MMOE_CUDA_ARCHITECTURES: expected some of 80, 90" in done.stderr.splitlines()[-1]
    assert "got '12'" in done.stderr
    assert not (tmp_path / "objects").exists()
