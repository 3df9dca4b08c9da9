"""`big` trained by mmoe itself, tables and all: from Parquet to updated weights, in bf16.

python -m benchmarks.gpu_check.whole BATCH --record FILE [--device cuda|cpu] [--small]

Two epochs, of which the last is timed; a few steps of the first are profiled. Then the same without
`training.cuda_graphs`. Needs what mmoe needs, pydantic among it.
"""

import mmoe  # noqa: F401, I001 - first: it says how OpenMP waits
import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.extension import require_kernels
from benchmarks.gpu_check.record import MEASURED, Record, machine_name
from benchmarks.gpu_check.train import BATCHES, measured_rate
from benchmarks.train.workloads import raw_config
from benchmarks.train.workloads import write_log
from benchmarks.train.ours import with_overrides
from benchmarks.train.workloads import BIG_FLOPS_PER_ROW, WORKLOADS
from mmoe.config import DeviceKind
from mmoe.embeddings import torchrec_problem
from mmoe.run.atomic_files import read_json
from mmoe.train import train_run

LEAST_ROWS, LEAST_STEPS = 400_000, 16
SMALL_ROWS, SMALL_BATCH = 4_096, 256
# In a trace: what a GPU itself does
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def main(arguments: Sequence[str] | None = None) -> None:
    """One line of the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.whole")
    parser.add_argument("batch", type=int, choices=BATCHES)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="4,096 rows in batches of 256")
    settings = parser.parse_args(arguments)
    if settings.device == "cuda":
        require_kernels()
    with tempfile.TemporaryDirectory(prefix="gpu-check-whole-") as folder:
        batch = SMALL_BATCH if settings.small else settings.batch
        values = measure(batch, settings.device, settings.small, Path(folder))
    record = Record(settings.record, machine_name(settings.device))
    record.add(f"train/whole-{settings.batch}/mmoe", MEASURED, **values)
    print(values)


def measure(batch: int, device: DeviceKind, small: bool, folder: Path) -> dict[str, Any]:
    """Rows/s of the last epoch, and what they are of the product rate and of the host's time."""
    rows = SMALL_ROWS if small else max(LEAST_ROWS, LEAST_STEPS * batch)
    log = write_log(WORKLOADS["big"], rows, folder)
    raw = raw_config(log, precision="bf16", epochs=2)
    rates = {}
    for graphs in (False, True):  # what is said below is of the second
        keys = f"training.batch_size={batch}", f"training.cuda_graphs={str(graphs).lower()}"
        out = folder / f"run-{graphs}"
        run = train_run(with_overrides(raw, keys), out, device=device, profile=True)
        rates[graphs] = read_json(run.directory.history_file)["epochs"][-1]["rows_per_second"]
    per_second = rates[True]
    busy = kernel_seconds(run.directory.path / "profile", batch)
    share = BIG_FLOPS_PER_ROW * per_second / measured_rate(device, small)
    return {
        "rows": batch,
        "rows_per_second": round(per_second),
        "rows_per_second_without_cuda_graphs": round(rates[False]),
        "share_of_product_rate": round(share, 4),
        "share_waiting_for_host": None if busy is None else round(1 - busy * per_second, 4),
        "tables": "plain" if torchrec_problem(torch.device(device)) else "torchrec, FBGEMM",
        "auc": run.metrics["tasks"][log.workload.tasks[0]]["auc"],
    }


def kernel_seconds(profile: Path, batch: int) -> float | None:
    """Of a row of the profiled steps, on the GPU alone; None where the trace knows of no GPU."""
    steps = json.loads((profile / "table.json").read_text(encoding="utf-8"))["steps"]
    events = json.loads((profile / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    microseconds = sum(event["dur"] for event in events if event.get("cat") in ON_DEVICE)
    return microseconds / 1e6 / steps / batch or None


if __name__ == "__main__":
    main()
