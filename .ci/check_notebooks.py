"""Fails where a committed notebook carries outputs."""

import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Returns 1 and names the notebooks that carry outputs."""
    dirty = [
        path.name
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None)
    ]
    for name in sorted(set(dirty)):
        print(f"notebooks/{name}: has outputs; run .venv/bin/nbstripout notebooks/{name}")
    return 1 if dirty else 0


if __name__ == "__main__":
    sys.exit(main())
