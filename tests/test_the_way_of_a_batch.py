"""The way of a batch: files and functions that a step, a mixture call and a scoring run through.

Each is traced, and `BUDGETS` says how long it may be. Whoever makes a way shorter lowers its line;
`pytest -s` prints all of them, with WAY=1 in the environment their files too.
"""

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import mmoe
from mmoe.datasets.bundled.synthetic import generate_funnel
from mmoe.datasets.recipes import load_recipe
from mmoe.mixture import MultiGateMixture
from mmoe.run import RunDirectory
from mmoe.score import score_files
from mmoe.train import train_run
from mmoe.train.step import StepProgram
from tests.needs_kernels import needs_kernels

LIBRARY = [Path(mmoe.__file__).resolve().parent]
LIBRARY.append((LIBRARY[0] / "datasets").resolve())
TOP_K = ("model.gate.kind=top_k", "model.gate.k=2")


class Length(NamedTuple):
    """Of a way.

    Attributes:
        files: Entered at least once.
        functions: Called at least once, nested ones and generators included.
        returns: How often a file is entered that was left before; None: not counted, as of several
            threads the order is not the same each time.
    """

    files: int
    functions: int
    returns: int | None


BUDGETS = {
    "step, dense": Length(22, 115, 57),
    "step, top_k": Length(24, 146, 85),  # of which rows permuted on the CPU, and back, are two
    "mixture, dense": Length(8, 40, 22),
    "mixture, top_k": Length(13, 68, 42),
    "score_files": Length(89, 739, None),  # batch.py too, where alone arrays become tensors
}


class Way:
    """Library files in the order in which they are entered, and functions."""

    def __init__(self) -> None:
        self.stays: list[str] = []
        self.functions: set[tuple[str, str]] = set()
        self._names: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Is told of calls by `sys.setprofile`."""
        code = frame.f_code
        # Neither bodies of modules and classes nor what newer Pythons run in place
        called = event == "call" and code.co_flags & inspect.CO_OPTIMIZED
        if not called or code.co_name.endswith("comp>"):
            return
        if (name := self._name(code.co_filename)) is None:
            return
        self.functions.add((name, code.co_qualname))
        if not self.stays or self.stays[-1] != name:
            self.stays.append(name)

    def _name(self, path: str) -> str | None:
        if path not in self._names:
            file = Path(path).resolve()
            inside = not path.startswith("<") and any(file.is_relative_to(top) for top in LIBRARY)
            self._names[path] = str(file.relative_to(LIBRARY[1].parent)) if inside else None
        return self._names[path]

    @property
    def files(self) -> list[str]:
        """Each once, in the order of their first entry."""
        return list(dict.fromkeys(self.stays))

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Listens to this thread and those that it starts."""
        outer = sys.getprofile()
        sys.setprofile(self)
        threading.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(outer)
            threading.setprofile(None)


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Way]:
    """The ways of BUDGETS."""
    folder = tmp_path_factory.mktemp("ways")
    found = _of_training(folder / "top_k", "top_k", TOP_K)
    found |= _of_training(folder / "dense", "dense", ())
    rows, way = folder / "rows.parquet", Way()
    pq.write_table(generate_funnel(rows=3000).table, rows)
    run = RunDirectory(folder / "dense")
    with way.traced():
        score_files(run, str(rows), str(folder / "scores.parquet"))
    return found | {"score_files": way}


def _of_training(out: Path, name: str, settings: tuple[str, ...]) -> dict[str, Way]:
    """The third step of a run, when all is warm, and the mixture's call in the second one."""
    step, mixture = Way(), Way()
    keys = ["data.options.rows=6000", "training.epochs=1", *settings]
    with pytest.MonkeyPatch.context() as patched:
        _trace_call(patched, StepProgram, "train", 3, step)
        _trace_call(patched, MultiGateMixture, "forward", 2, mixture)
        train_run(load_recipe("synthetic-funnel", keys), out)
    return {f"step, {name}": step, f"mixture, {name}": mixture}


def _trace_call(patched: pytest.MonkeyPatch, owner: type, name: str, number: int, way: Way) -> None:
    whole: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1, sys.maxsize))

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) != number:
            return whole(*args, **kwargs)
        with way.traced():
            return whole(*args, **kwargs)

    patched.setattr(owner, name, call)


@needs_kernels
@pytest.mark.parametrize("name", BUDGETS)
def test_a_way_is_no_longer_than_its_budget(name: str, ways: dict[str, Way]) -> None:
    """A change that makes a way longer shortens another, or says why in BUDGETS."""
    way, budget = ways[name], BUDGETS[name]
    returns = None if budget.returns is None else len(way.stays) - len(way.files)
    found = Length(len(way.files), len(way.functions), returns)
    print(f"{name}: {found}")
    if os.environ.get("WAY"):
        print(*(f"  {file}" for file in way.files), sep="\n")
    for what, measured, most in zip(Length._fields, found, budget, strict=True):
        assert measured is None or measured <= most, (what, measured, most, way.files)
