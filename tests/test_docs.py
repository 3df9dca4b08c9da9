"""Every example in a docstring and every block in the README runs, and prints what it says."""

import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import mmoe
from mmoe.config import config_from_dict, dump_config

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(mmoe.__path__, "mmoe."))
BLOCKS = re.findall(
    r"```([\w-]+)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)


def _blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("._C")])
def test_docstring_examples(name):
    if name == "mmoe.__main__":
        pytest.skip("importing it runs the command line")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("torchrec", "fbgemm_gpu"):
            raise
        pytest.skip(f"{error.name} is not installed")
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    results = doctest.testmod(module, optionflags=flags)
    assert results.failed == 0


def test_every_public_name_is_importable():
    assert {getattr(mmoe, name) is not None for name in mmoe.__all__} == {True}


@pytest.mark.slow
def test_readme_python_prints_what_it_says(tmp_path, monkeypatch):
    code, *others = _blocks("python")
    for other in others:
        exec(compile(other, "README.md", "exec"), {"__name__": "__main__"})
    (expected,) = _blocks("text")
    assert len([line for line in code.splitlines() if line.strip()]) <= 14
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})

    def shape(text: str) -> str:
        """Numbers may differ in a digit between processors, so they are compared apart."""
        return re.sub(r"\d+\.\d+|\s+", " ", text).strip()

    assert shape(out.getvalue()) == shape(expected)
    mine, theirs = (
        [float(number) for number in re.findall(r"\d+\.\d+", text)]
        for text in (out.getvalue(), expected)
    )
    assert mine == pytest.approx(theirs, abs=0.1)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_readme_commands_run(tmp_path):
    """The bash blocks in order, in an empty folder; make's and pip's are checked apart."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for block in _blocks("bash"):
        if block.startswith(("make ", "pip ", "python -m venv", ".ci/", "python -m benchmarks")):
            continue
        done = subprocess.run(
            ["bash", "-euc", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, f"{block}\n{done.stderr[-3000:]}"


def test_readme_config_is_valid():
    whole, *sections = map(yaml.safe_load, _blocks("yaml"))
    for raw in (whole, *({**whole, **section} for section in sections)):
        config = config_from_dict(raw)
        assert config_from_dict(yaml.safe_load(dump_config(config))) == config


def test_readme_tree_is_the_real_one():
    """Every folder of the tree exists, and every package is in it."""
    (tree,) = _blocks("text-tree")
    named = {line.split()[0] for line in tree.splitlines()}
    assert all((ROOT / name).is_dir() for name in named)
    packages = {f"mmoe/{path.parent.name}/" for path in (ROOT / "mmoe").glob("*/__init__.py")}
    assert packages - {"mmoe/datasets/"} <= named


def test_readme_make_targets_exist():
    wanted = {
        line.split()[1]
        for block in _blocks("bash")
        for line in block.splitlines()
        if line.startswith("make ")
    }
    assert {"demo", "test"} <= wanted
    for target in sorted(wanted):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
@pytest.mark.parametrize(
    "command",
    [["bash", ".ci/gpu-check", sys.executable], [sys.executable, "setup.py", "build_ext"]],
)
def test_a_cuda_build_without_cuda_is_refused_in_one_line(command, tmp_path):
    done = subprocess.run(
        [*command, *(["--build-temp", str(tmp_path)] if "setup.py" in command else [])],
        cwd=ROOT,
        env={**os.environ, "MMOE_BUILD": "cuda"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "is built without CUDA" in line


def test_readme_installs_what_the_set_up_installs():
    """One place decides which versions match; the README may not drift from it."""
    setup = (ROOT / ".ci" / "setup").read_text(encoding="utf-8")
    lines = [
        line.split("#")[0].strip()
        for block in _blocks("bash")
        for line in block.splitlines()
        if line.startswith("pip install ") and "==" in line
    ]
    assert lines, "the README says which versions to install"
    for line in lines:
        for requirement in re.findall(r"\S+==\S+", line):
            assert requirement in setup, f"README installs {requirement}, .ci/setup does not"


def test_readme_links_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in link:
            assert (ROOT / link).exists(), link
