"""How long `mmoe init` looks at 400,000 rows of 30 columns."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.first_try.logs.pieces import hashes, zipf

_ROWS = 400_000


def init_seconds(folder: Path) -> float:
    """Returns the seconds of the whole command, Python's start included."""
    log, config = folder / "wide.parquet", folder / "wide.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(_wide(), log)
    config.unlink(missing_ok=True)
    command = [sys.executable, "-m", "mmoe", "init", str(log), "--out", str(config)]
    command += ["--label", "click", "--label", "sale"]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def _wide() -> pa.Table:
    """Twelve whole-number ids, five texts, ten numbers, a time and two labels."""
    rng = np.random.default_rng(500)
    columns: dict[str, np.ndarray] = {}
    logit = np.zeros(_ROWS)
    for i in range(12):
        size = int(10 ** rng.uniform(0.5, 5))
        ids_N = zipf(rng, size, _ROWS, 0.9)
        columns[f"k{i}"] = rng.permutation(size)[ids_N]
        logit += rng.normal(0, 0.3, size)[ids_N]
    for i in range(5):
        size = int(10 ** rng.uniform(0.5, 4))
        ids_N = zipf(rng, size, _ROWS, 0.9)
        columns[f"t{i}"] = hashes(rng, size)[ids_N]
        logit += rng.normal(0, 0.3, size)[ids_N]
    for i in range(10):
        values_N = rng.lognormal(2, 1, _ROWS) if i % 2 else rng.normal(0, 1, _ROWS)
        columns[f"n{i}"] = np.round(values_N, 3) if i < 6 else np.round(values_N)
        logit += 0.2 * np.tanh(values_N - values_N.mean())
    columns["ts"] = 1_760_000_000 + np.sort(rng.integers(0, 2_000_000, _ROWS))
    for name, low in (("click", 1.5), ("sale", 3.5)):
        columns[name] = (rng.random(_ROWS) < 1 / (1 + np.exp(low - logit))).astype(np.int64)
    return pa.table(columns)
