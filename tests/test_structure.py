"""No module imports another one in a circle, however many lie between, types included."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = ROOT / ".ci" / "check_structure.py"


@pytest.fixture(name="circle_of_imports", scope="module")
def _circle_of_imports():
    spec = importlib.util.spec_from_file_location("check_structure", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.circle_of_imports


def test_there_is_none(circle_of_imports):
    assert circle_of_imports(ROOT) == []


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
