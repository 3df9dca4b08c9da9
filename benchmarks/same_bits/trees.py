"""A source tree whose commands are run, and the facts that its outputs are."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow.parquet as pq
from safetensors import safe_open

SECONDS = 1_800
# What says how long something took, or when, or where
_PASSING = (
    "second", "time", "rate", "path", "version", "rss", "_mb", "date", "machine", "when",
    "share_hidden",
)  # fmt: skip


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Tree:
    """Runs the commands of one source tree over the logs of the cases, one at a time.

    Commands of one process run in one that stays, since importing takes longer than most of them.
    """

    def __init__(self, root: Path, logs: Path) -> None:
        self.root, self.logs = root, logs
        self.environment = {
            **os.environ, "PYTHONPATH": str(root), "COLUMNS": "100", "MMOE_BIND_CORES": "0",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self._worker: subprocess.Popen[str] | None = None

    def mmoe(self, *arguments: object, ranks: int = 1) -> str:
        """What it printed."""
        if ranks == 1:
            return self.call("mmoe", *arguments)
        module = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "-m", "mmoe"]
        return self.python(*module, *arguments)

    def call(self, what: str, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
        """Has the worker run `mmoe`, or one of its own programs."""
        if self._worker is None:
            self._worker = subprocess.Popen(
                [sys.executable, str(HERE / "worker.py")],
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        told, heard = cast(IO[str], self._worker.stdin), cast(IO[str], self._worker.stdout)
        told.write(json.dumps([what, *map(str, arguments)]) + "\n")
        told.flush()
        line = heard.readline()
        if not line:
            self.close()
            raise RuntimeError(f"{what} {arguments}: the process died")
        answer = json.loads(line)
        if answer["code"] not in codes:
            raise RuntimeError(f"{what} {arguments}: code {answer['code']}\n{answer['error']}")
        return answer["out"]

    def python(self, *arguments: object) -> str:
        """The standard output of a Python of its own."""
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4_000:]}")
        return done.stdout

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "mmoe", *map(str, arguments)],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            self._worker = None


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """The tree of a commit, built; its operators are copied where their sources are the same."""
    git = ["git", "-C", str(ROOT)]
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([*git, "worktree", "prune"], check=True)
    subprocess.run([*git, "worktree", "add", "--detach", "-q", str(folder), commit], check=True)
    try:
        same = subprocess.run([*git, "diff", "--quiet", commit, "--", "csrc", "setup.py"])
        built = list((ROOT / "mmoe").glob("_C*.so"))
        if same.returncode == 0 and built:
            shutil.copy2(built[0], folder / "mmoe")
        elif built:
            build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            subprocess.run(build, cwd=folder, check=True)
        yield folder
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


def facts_of_run(run: Path) -> dict[str, str]:
    facts = {}
    for file in sorted(run.glob("checkpoint/*/*.safetensors")):
        step = file.parent.name
        with safe_open(file, "np") as tensors:
            names = sorted(tensors.keys())
        for name in names:
            facts[f"{step}/{file.name}/{name}"] = _hash_of_tensor(file, name)
    for name in ("metrics.json", "history.json"):
        if (run / name).exists():
            _flatten(json.loads((run / name).read_text()), name, facts)
    return facts


def facts_of_json(text: str, prefix: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    _flatten(json.loads(text), prefix, facts)
    return facts


def facts_of_scores(path: Path) -> dict[str, str]:
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    facts = {}
    for file in files:
        table = pq.read_table(file)
        for column in table.column_names:
            values = np.asarray(table[column].to_pandas())
            data = values.tobytes() if values.dtype != object else repr(values.tolist()).encode()
            name = f"{file.relative_to(path)}/{column}" if path.is_dir() else column
            facts[f"scores {name}"] = _digest(data)
    return facts


def _hash_of_tensor(file: Path, name: str) -> str:
    """Of its bytes, whatever its type: NumPy has no bf16."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        first, last = header[name]["data_offsets"]
        stream.seek(first, os.SEEK_CUR)
        return _digest(stream.read(last - first))


def _flatten(value: Any, name: str, facts: dict[str, str]) -> None:
    if any(word in name.rsplit("/", 1)[-1] for word in _PASSING):
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, f"{name}/{key}", facts)
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for place, inner in enumerate(value):
            _flatten(inner, f"{name}/{place}", facts)
    else:
        facts[name] = repr(value) if not isinstance(value, list) else _digest(repr(value).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
