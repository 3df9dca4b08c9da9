"""What all cases share: a clean log, and runs that were trained on it."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from benchmarks.faults.inputs.in_process import run_in_process
from benchmarks.faults.small_log import small_config, small_log
from mmoe.config import config_from_dict

ROWS = 600


class Workspace:
    """A folder with a log and finished runs; the second of two processes finds them there.

    A run in memory and a streamed one were trained on the log, and two more (`parts-memory`,
    `parts-stream`) on the same rows in three files.

    Args:
        folder: Made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.parts = folder, folder / "log.parquet", folder / "parts"
        if self.log.exists():
            return
        self.parts.mkdir(parents=True)
        table = small_log(ROWS, seed=9)
        pq.write_table(table, self.log, row_group_size=200)
        for n in range(3):
            pq.write_table(table.slice(200 * n, 200), self.parts / f"part-{n}.parquet")
        for how in ("memory", "stream", "parts-memory", "parts-stream"):
            raw = small_config(str(self.parts if how.startswith("parts") else self.log))
            raw["data"] |= {"input": how.rpartition("-")[2], "streaming": {"chunk_rows": 40}}
            config = folder / f"{how}.yaml"
            config.write_text(yaml.safe_dump(raw), encoding="utf-8")
            arguments = ["train", str(config), "--out", str(self.run(how)), "--quiet"]
            ended = run_in_process(arguments, 300.0)
            if ended.code != 0:
                raise RuntimeError(f"the clean run failed: {ended.stderr}")

    def run(self, how: str) -> Path:
        """A finished run, `memory`, `stream`, `parts-memory` or `parts-stream`."""
        return self.folder / f"run-{how}"

    def copy_run(self, to: Path) -> Path:
        """A copy that may be damaged."""
        return Path(shutil.copytree(self.run("memory"), to))

    def full_config(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Every default spelled out."""
        return config_from_dict(raw).model_dump(mode="json")
