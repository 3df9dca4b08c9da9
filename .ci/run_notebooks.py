"""Runs every notebook in a copy of its folder, two at a time, and says how long each took.

    python .ci/run_notebooks.py [--whole]

With the sizes of QUICK, which run every line; with `--whole` as they stand, which is what the
numbers in their text are from.
"""

import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
SECONDS_PER_CELL = 900  # one takes half a minute on a quiet machine
# Sizes that a notebook's first cell of code sets; 04's nights need the rows that they have
QUICK = {
    "01_mmoe_in_ten_minutes": {"ROWS": 12_000, "TRAIN": 10_000},
    "02_gates_and_who_pays": {"ROWS": 12_000, "TRAIN": 10_000},
    "03_what_a_history_says": {"USERS": 1_000},
    "05_convert": {"STEPS": 60},
}


def main() -> int:
    """Executes; returns 1 where a notebook failed."""
    # Threads of two of them on two cores would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    with ThreadPoolExecutor(2) as pool:
        return int(not all(list(pool.map(_passes, paths))))


def _passes(path: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, folder)
        start = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        if "--whole" not in sys.argv:
            _shorten(notebook, QUICK.get(path.stem, {}))
        client = NotebookClient(
            notebook,
            timeout=SECONDS_PER_CELL,
            resources={"metadata": {"path": folder}},
            # The kernel warns that it talks over TCP, which here does not leave the machine.
            extra_arguments=["--log-level=ERROR"],
        )
        try:
            client.execute()
            failure = None
        except CellExecutionError as error:
            failure = error
    outcome = "ok" if failure is None else f"FAILED\n{failure}"
    print(f"{path.name}: {time.perf_counter() - start:.0f} s, {outcome}", flush=True)
    return failure is None


def _shorten(notebook: nbformat.NotebookNode, sizes: dict[str, int]) -> None:
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    for name, size in sizes.items():
        first.source += f"\nassert {name} > {size}\n{name} = {size}"  # a name that it has set


if __name__ == "__main__":
    sys.exit(main())
