"""Every example in a docstring runs, and every block of the README and its chapters holds.

A chapter is README.md or one of those that it leads to. Blocks, by their language:

    python       is run; where a block `text` follows, it prints that
    bash         is run, in the folder in which the README's commands were
    yaml         is a config, or sections that go into the README's
    yml, sh      are read alone: other programs run them
    text-tree    names files and folders below the chapter's own: all packages that are there
    text-calls   says which file of csrc includes which
    text-table, text-picture   are for people
"""

import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import typer.main
import yaml

import mmoe
from mmoe.cli.commands import app
from mmoe.config import config_from_dict, dump_config
from tests.own_kinds import forget_own_kinds

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(mmoe.__path__, "mmoe."))
PAGES = [
    *ROOT.glob("*.md"),
    *(page for top in ("mmoe", "datasets", "csrc") for page in (ROOT / top).rglob("README.md")),
    *(ROOT / "benchmarks").rglob("*.md"),
]
# mmoe/datasets is a link to datasets/
CHAPTERS = sorted(
    {page.resolve().relative_to(ROOT).as_posix() for page in PAGES} - {"CHANGELOG.md"}
)
KINDS = {"python", "text", "bash", "yaml", "yml", "sh", "text-tree", "text-calls"}
KINDS |= {"text-table", "text-picture"}
MOST_LINES = 200  # of README.md
SOURCES = {".cpp", ".h", ".cu", ".cuh"}
# What takes minutes, or an installation
NOT_RUN = ("make ", "pip ", "python -m venv", "python -m benchmarks")


@cache
def _text(chapter: str) -> str:
    return (ROOT / chapter).read_text(encoding="utf-8")


def _blocks(chapter: str, *kinds: str) -> list[tuple[str, str]]:
    """Kind and text of each block, or of those of some kinds."""
    blocks = re.findall(r"^```([\w-]+)\n(.*?)^```", _text(chapter), re.DOTALL | re.MULTILINE)
    return [(kind, text) for kind, text in blocks if kind in (kinds or KINDS)]


def _with(*kinds: str) -> list[str]:
    return [chapter for chapter in CHAPTERS if _blocks(chapter, *kinds)]


def _prose(chapter: str) -> str:
    return re.sub(r"^```.*?^```", "", _text(chapter), flags=re.DOTALL | re.MULTILINE)


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
    """Those of rooms, too, which are looked up on first use alone."""
    below = pkgutil.walk_packages(mmoe.__path__, "mmoe.")
    rooms = [mmoe, *(importlib.import_module(found.name) for found in below if found.ispkg)]
    names = [(room, name) for room in rooms for name in getattr(room, "__all__", ())]
    assert len(names) > 200
    for room, name in names:
        assert getattr(room, name) is not None, (room, name)


def test_the_readme_is_short_and_leads_to_every_chapter():
    assert len(_text("README.md").splitlines()) <= MOST_LINES
    led_to = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", _text("README.md"))}
    chapters = {c for c in CHAPTERS if c.endswith("/README.md")}
    assert chapters <= led_to


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_block_is_of_a_kind_that_is_looked_at(chapter):
    fences = re.findall(r"^```(.*)$", _text(chapter), re.MULTILINE)
    assert set(fences[::2]) <= KINDS and set(fences[1::2]) <= {""}


@pytest.mark.parametrize(
    "chapter",
    [
        pytest.param(chapter, marks=[pytest.mark.slow] if chapter == "README.md" else [])
        for chapter in _with("python")
    ],
)
def test_python_prints_what_the_chapter_says(chapter, tmp_path, monkeypatch, request):
    request.addfinalizer(forget_own_kinds)
    monkeypatch.chdir(tmp_path)
    blocks = _blocks(chapter)
    for (kind, code), (after, expected) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind != "python":
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, chapter, "exec"), {"__name__": "__main__"})
        if after == "text":
            _same_text(out.getvalue(), expected)


def _same_text(printed: str, expected: str) -> None:
    """Fractions may differ in a digit between processors, so they are compared apart."""

    def shape(text: str) -> str:
        return re.sub(r"\d+\.\d+|\s+", " ", text).strip()

    assert shape(printed) == shape(expected)
    mine, theirs = (
        [float(number) for number in re.findall(r"\d+\.\d+", text)] for text in (printed, expected)
    )
    assert mine == pytest.approx(theirs, abs=0.1)


def test_the_first_example_is_short():
    _, code = _blocks("README.md", "python")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 14


@pytest.fixture(scope="module", name="first_steps")
def _first_steps(tmp_path_factory) -> Path:
    """A folder in which the README's commands were run."""
    folder = tmp_path_factory.mktemp("first_steps")
    _run_commands("README.md", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("chapter", _with("bash"))
def test_commands_run(chapter, first_steps):
    """Those of a chapter in order; make's, pip's and the benchmarks' are checked apart."""
    if chapter != "README.md":
        _run_commands(chapter, first_steps)


def _run_commands(chapter: str, folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for _, block in _blocks(chapter, "bash"):
        if block.startswith(NOT_RUN):
            continue
        done = subprocess.run(
            ["bash", "-euc", block],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, f"{chapter}: {block}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("chapter", _with("yaml"))
def test_configs_are_valid(chapter):
    whole = yaml.safe_load(_blocks("README.md", "yaml")[0][1])
    for _, text in _blocks(chapter, "yaml"):
        own = yaml.safe_load(text)
        both = {**whole, **own}
        if "tables" not in own:  # those of the first page that the block's features use
            used = {feature.get("table") for feature in both["features"]}
            both["tables"] = [table for table in whole["tables"] if table["name"] in used]
        config = config_from_dict(both)
        assert config_from_dict(yaml.safe_load(dump_config(config))) == config


@pytest.mark.parametrize("chapter", _with("yml", "sh"))
def test_what_others_run_can_be_read(chapter):
    for kind, text in _blocks(chapter, "yml", "sh"):
        if kind == "yml":
            assert yaml.safe_load(text)["kind"]
        else:
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_functions_and_classes_are_where_the_chapter_says(chapter):
    """`mmoe/train/loop.py`, `Trainer._epoch`: its last name is defined in that file."""
    for file, name in re.findall(r"`([\w./-]+\.py)`[,:]\s+`([\w.]+)`", _prose(chapter)):
        if (ROOT / file).exists() and Path(name).suffix not in {".py", *SOURCES}:
            defined = rf"^\s*(def|class) {name.rpartition('.')[2]}\b"
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(defined, text, re.MULTILINE), f"{chapter}: {file}, {name}"


@pytest.mark.parametrize("chapter", _with("text-tree"))
def test_a_tree_is_the_real_one(chapter):
    """What it names exists, and every package of the chapter's folder is in it."""
    folder = (ROOT / chapter).parent
    ((_, tree),) = _blocks(chapter, "text-tree")
    named = {line.split()[0] for line in tree.splitlines()}
    missing = {name for name in named if not (folder / name).exists()}
    assert not missing, f"{chapter} names {missing}"
    room = folder / "mmoe" if chapter == "README.md" else folder
    packages = {
        f"{path.parent.relative_to(folder).as_posix()}/" for path in room.glob("*/__init__.py")
    }
    assert packages - {"mmoe/datasets/"} <= named


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_files_that_are_named_exist(chapter):
    """`mmoe/train/loop.py`, seen from the root, the chapter's folder, or a folder of it."""
    folder = (ROOT / chapter).parent
    for name in re.findall(r"`([\w./-]+\.(?:py|cpp|h|cu|cuh|yaml))`", _prose(chapter)):
        there = (ROOT / name).exists() or (folder / name).exists()
        invented = name == "config.yaml" or "NAME" in name or "KIND" in name
        assert there or invented or any(folder.rglob(name)), f"{chapter} names {name}"


def test_the_chapter_of_csrc_names_every_file():
    text = _text("csrc/README.md")
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in SOURCES]
    assert {path.name for path in sources if path.name not in text} == set()


def test_csrc_includes_what_its_chapter_says():
    """`a → b`: a includes b, or something that does; `b.cpp` stands for `b.h`."""
    files = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in SOURCES]
    uses: dict[str, set[str]] = {path.name: set() for path in files}
    for path in files:
        text = path.read_text(encoding="utf-8")
        uses[path.name] |= {Path(name).name for name in re.findall(r'#include "([^"]+)"', text)}
    ((_, lines),) = _blocks("csrc/README.md", "text-calls")
    for line in lines.splitlines():
        steps = [step.strip().split(", ") for step in line.split("→")]
        for users, used in pairwise(steps):
            for user in users:
                assert set(used) <= _reached(user, uses), f"{user} → {used}"


def _reached(name: str, uses: dict[str, set[str]]) -> set[str]:
    found, left = set(), [name, f"{Path(name).stem}.cpp"]
    while left:
        new = uses.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def _links() -> Iterator[tuple[str, str]]:
    for chapter in CHAPTERS:
        for link in re.findall(r"\]\(([^)\s]+)\)", _prose(chapter)):
            if "://" not in link:
                yield chapter, link


def test_links_lead_somewhere():
    """Files, and headings as GitHub names them."""
    for chapter, link in _links():
        path, _, heading = link.partition("#")
        target = ((ROOT / chapter).parent / path).resolve() if path else ROOT / chapter
        assert target.exists(), f"{chapter}: {link}"
        if heading:
            assert heading in _headings(target), f"{chapter}: {link}"


@cache
def _headings(page: Path) -> set[str]:
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def _commands(program: str) -> Iterator[tuple[str, list[str]]]:
    """Each line of code that begins with a program, and its words."""
    for chapter in CHAPTERS:
        code = re.findall(r"`([^`\n]+)`", _prose(chapter))
        code += [line for _, text in _blocks(chapter, "bash") for line in text.splitlines()]
        for line in code:
            words = re.sub(r"[\[\]]|#.*|\\\|", " ", line).split()
            if line.startswith(program):
                yield f"{chapter}: {line}", words[len(program.split()) :]


def test_commands_have_the_options_that_are_named():
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = set()
    for line, (name, *words) in _commands("mmoe "):
        if name not in known:
            assert name.startswith("-") or name == "…", line
            continue
        options = {o for of in known[name].params for o in (*of.opts, *of.secondary_opts)}
        assert {word for word in words if re.match(r"--\w", word)} <= options | {"--help"}, line
        named.add(name)
    assert named == set(known)


def test_benchmarks_that_are_named_exist():
    modules = {words[0] for _, words in _commands("python -m ")}
    assert {name for name in modules if importlib.util.find_spec(name) is None} == set()


@pytest.mark.slow
def test_benchmarks_have_the_options_that_are_named():
    for line, (module, *words) in _commands("python -m "):
        if not module.startswith("benchmarks"):
            continue
        part = words[:1] if words and not words[0].startswith("-") else []
        done = subprocess.run(
            [sys.executable, "-m", module, *part, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        wanted = {word for word in words if word.startswith("--")}
        assert all(option in done.stdout for option in wanted), line


def test_make_has_the_targets_that_are_named():
    wanted = {
        word for _, words in _commands("make ") for word in words if re.fullmatch(r"[a-z-]+", word)
    }
    assert {"demo", "test"} <= wanted
    done = subprocess.run(["make", "-n", *wanted], cwd=ROOT, capture_output=True, text=True)
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


def test_the_readme_installs_what_the_set_up_installs():
    """One place decides which versions match; the README may not drift from it."""
    setup = (ROOT / ".ci" / "setup").read_text(encoding="utf-8")
    wanted = {
        word.strip("'") for _, words in _commands("pip install ") for word in words if "==" in word
    }
    assert len(wanted) >= 3, "the README says which versions to install"
    assert {requirement for requirement in wanted if requirement not in setup} == set()
