"""Training over more rows than an address-space limit lets in: streamed it ends, in memory not."""

import resource
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.faults.commands import start
from benchmarks.faults.small_log import small_config, small_log

GROUP_ROWS, IDS_A_ROW, LISTS = 2_500, 250, 4
SMALL_GROUPS, LARGE_GROUPS = 4, 60
# What a run may take beyond one over the small log
MORE_BYTES = 384 << 20
STREAMING = {"shuffle_buffer_rows": 8_192, "chunk_rows": 1_000, "interleave": 2}
TIME_OUT_SECONDS = 300.0


@dataclass(frozen=True)
class LimitedRuns:
    """What came of it.

    Attributes:
        limit: Bytes of address space.
        small_peak: Of a streamed run over a few rows, without a limit.
        decoded: Bytes that the columns of the large log hold in memory.
        streamed: The streamed run over the large log: exit code and last words.
        held: The same in memory.
    """

    limit: int
    small_peak: int
    decoded: int
    streamed: tuple[int, str]
    held: tuple[int, str]

    @property
    def passed(self) -> bool:
        """Streaming ended well, and the rest could not; it said so in one line."""
        code, said = self.held
        refused = code == 2 and "not enough memory" in said and "\n" not in said
        return self.streamed[0] == 0 and refused


def limited_runs(folder: Path, say: Callable[[str], None]) -> LimitedRuns:
    """Trains under a limit well below what the rows hold."""
    folder.mkdir(parents=True, exist_ok=True)
    small, large = folder / "small.parquet", folder / "large.parquet"
    _write(small, SMALL_GROUPS)
    decoded = _write(large, LARGE_GROUPS)
    code, said, peak = _train(folder, small, "stream", None)
    if code != 0:
        raise RuntimeError(f"the run over a few rows failed: {said}")
    limit = peak + MORE_BYTES
    streamed = _train(folder, large, "stream", limit)
    held = _train(folder, large, "memory", limit)
    runs = LimitedRuns(limit, peak, decoded, streamed[:2], held[:2])
    say(
        f"rows of {decoded / 2**20:,.0f} MiB under a limit of {limit / 2**20:,.0f} MiB of address "
        f"space, {MORE_BYTES >> 20} MiB more than a small run takes: streamed exit code "
        f"{streamed[0]}, in memory {held[0]} ({held[1][-300:]})"
    )
    return runs


def _write(path: Path, groups: int) -> int:
    """Long lists of which the run keeps the first few ids; returns bytes, decoded."""
    table = small_log(GROUP_ROWS, seed=4).drop_columns(["history", "note"])
    offsets = pa.array(np.arange(GROUP_ROWS + 1, dtype=np.int32) * IDS_A_ROW)
    for n in range(LISTS):
        ids = np.repeat((np.arange(GROUP_ROWS) * (n + 3)) % 97, IDS_A_ROW)
        table = table.append_column(f"list{n}", pa.ListArray.from_arrays(offsets, pa.array(ids)))
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return groups * table.nbytes


def _train(folder: Path, data: Path, how: str, limit: int | None) -> tuple[int, str, int]:
    """Exit code, last words, and the peak of the address space in bytes."""
    raw = small_config(str(data), batch_size=1024, eval_batch_size=1024)
    raw["data"] |= {"input": how, "streaming": STREAMING}
    raw["features"] = [f for f in raw["features"] if f["name"] != "history"]
    raw["features"] += [{"kind": "list", "name": f"list{n}", "max_length": 4} for n in range(LISTS)]
    name = f"{data.stem}-{how}"
    config, log = folder / f"{name}.yaml", folder / f"{name}.log"
    config.write_text(yaml.safe_dump(raw), encoding="utf-8")
    process = start(["train", config, "--out", folder / name, "--quiet"], log)
    if limit is not None:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
    peak = _wait(process)
    return process.returncode, log.read_text(encoding="utf-8").strip(), peak


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Until it ends; the largest address space that was seen."""
    peak, end = 0, time.monotonic() + TIME_OUT_SECONDS
    while process.poll() is None:
        if time.monotonic() > end:
            process.kill()
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        lines = [line for line in status.splitlines() if line.startswith("VmPeak:")]
        peak = max([peak, *(int(line.split()[1]) * 1024 for line in lines)])
        time.sleep(0.02)
    return peak
