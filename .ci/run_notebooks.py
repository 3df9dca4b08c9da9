"""Runs every notebook in a copy of its folder and says how long each took."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
SECONDS_PER_CELL = 900  # one takes half a minute on a quiet machine


def main() -> int:
    """Executes; returns 1 where a notebook failed."""
    failed = 0
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(path, folder)
            notebook = nbformat.read(path, as_version=4)
            start = time.perf_counter()
            client = NotebookClient(
                notebook,
                timeout=SECONDS_PER_CELL,
                resources={"metadata": {"path": folder}},
                # The kernel warns that it talks over TCP, which here does not leave the machine.
                extra_arguments=["--log-level=ERROR"],
            )
            try:
                client.execute()
                outcome = "ok"
            except CellExecutionError as error:
                outcome, failed = f"FAILED\n{error}", failed + 1
        print(f"{path.name}: {time.perf_counter() - start:.0f} s, {outcome}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
