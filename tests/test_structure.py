"""What `.ci/check_structure.py` counts; no imports go round in a circle, types included."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = ROOT / ".ci" / "check_structure.py"


@pytest.fixture(name="structure", scope="module")
def _structure():
    spec = importlib.util.spec_from_file_location("check_structure", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="circle_of_imports", scope="module")
def _circle_of_imports(structure):
    return lambda root: structure.circle_of_imports(structure.Code.read(root))


def test_there_is_none(circle_of_imports):
    assert circle_of_imports(ROOT) == []


def test_what_makes_code_hard_to_read_is_counted(structure, tmp_path):
    rooms = {"mmoe": "", "mmoe/a": "from mmoe.a.shallow import A", "mmoe/b": "", "mmoe/c": ""}
    for room, text in rooms.items():
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(text)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "mmoe/a/shallow.py").write_text("class A: ...\n")
    (tmp_path / "mmoe/a/tiny.py").write_text("T = 1\n")
    (tmp_path / "mmoe/a/deep.py").write_text("from mmoe.a.tiny import T\n" + "T\n" * 80)
    long = "def f(x):\n" + "    x\n" * 60
    use = "from mmoe.a import A\nfrom mmoe.a.deep import B\nisinstance(1, A)\ngetattr(1, 'b')\n"
    (tmp_path / "mmoe/b/one.py").write_text(use + long)
    found = dict(
        zip(structure.LIMITS, structure.counted(structure.Code.read(tmp_path)), strict=True)
    )
    counts = [len(places) for places in found.values()]
    assert counts == [0, 1, 1, 1, 1, 1, 1], found


ADAPTERS = {
    **{f"score/{name}": 100 for name in ("files", "loaded")},
    **{f"integrations/{name}": 100 for name in ("mlflow", "ray", "ray_worker", "spark_daemon")},
    "integrations/estimator_fitted": 390,  # its answers, what is stored, pictures, explanation
    "integrations/ray_engine": 285,  # the cluster, its workers, and the parts handed out
    "integrations/spark": 190,  # the session, what a job may read, and the job
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_who_adapts_the_scorer_has_little_to_say(name):
    """One scorer, table in, table out: what grows here may be its work, or somebody else's."""
    lines = (ROOT / "mmoe" / f"{name}.py").read_text(encoding="utf-8").count("\n")
    assert lines <= ADAPTERS[name], lines


@pytest.mark.parametrize(
    "last",
    [
        "from mmoe.a import x",
        "if TYPE_CHECKING:\n    from mmoe.a import x",
        "def f():\n    from mmoe import x",  # handed on by the package
        "import mmoe.a",
    ],
)
def test_one_is_found(circle_of_imports, last, tmp_path):
    rooms = {"mmoe": "from mmoe.a import x", "mmoe/inner": "", "datasets": ""}
    for room, text in rooms.items():
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(text)
    (tmp_path / "mmoe" / "a.py").write_text("from mmoe.inner import b")
    (tmp_path / "mmoe" / "inner" / "b.py").write_text("import mmoe.datasets.c")
    (tmp_path / "datasets" / "c.py").write_text(last)
    circle = circle_of_imports(tmp_path)
    assert circle[0] == circle[-1]
    assert set(circle) == {"mmoe.a", "mmoe.inner.b", "mmoe.datasets.c"}
    (tmp_path / "datasets" / "c.py").write_text("import mmoe.other")
    assert circle_of_imports(tmp_path) == []
