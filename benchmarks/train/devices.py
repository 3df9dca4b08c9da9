"""Trains `big` with our side alone, on each device: rows/s of the last epoch, and the AUC.

python -m benchmarks.train.devices [--devices cpu cuda] [--precisions fp32 bf16] [--rows N]
                                   [--epochs N] [--set KEY.PATH=VALUE ...] [--folder DIR]

Needs neither FBGEMM (tables are then on the plain backend) nor a rival: it is what `.ci/gpu-check`
runs. Prints a table and, last, one JSON line.
"""

import mmoe  # noqa: F401, I001 - first: it says how OpenMP waits
import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.racing.harness import processor
from benchmarks.train.workloads import raw_config
from benchmarks.train.workloads import Log, write_log
from benchmarks.train.ours import with_overrides
from benchmarks.train.workloads import WORKLOADS
from mmoe.models.layout import describe_device, resolve_device
from mmoe.run.atomic_files import read_json
from mmoe.train import train_run


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains once for each device and precision."""
    settings = _parser().parse_args(arguments)
    torch.set_num_threads(settings.threads)
    with tempfile.TemporaryDirectory() as temporary:
        log = write_log(WORKLOADS["big"], settings.rows, settings.folder or Path(temporary))
        found = {
            f"{device}_{precision}": _train(log, device, precision, settings, Path(temporary))
            for device in settings.devices
            for precision in settings.precisions
        }
    print(f"{'device, precision':24}{'rows/s':>12}{'AUC':>10}")
    for name, result in found.items():
        print(f"{name:24}{result['rows_per_second']:>12,.0f}{result['auc']:>10.4f}")
    context = {"processor": processor(), "torch": torch.__version__, "threads": settings.threads}
    print(json.dumps({**found, **context, "rows": log.rows, "epochs": settings.epochs}))


def _train(
    log: Log, device: str, precision: str, settings: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    config = with_overrides(
        raw_config(log, precision=precision, epochs=settings.epochs), tuple(settings.set)
    )
    place = resolve_device(device, config.training.embedding_backend)  # type: ignore[arg-type]
    run = train_run(config, folder / f"{device}-{precision}", device=device)  # type: ignore[arg-type]
    last = read_json(run.directory.history_file)["epochs"][-1]
    return {
        "rows_per_second": round(last["rows_per_second"], 1),
        "auc": run.metrics["tasks"][log.workload.tasks[0]]["auc"],
        "seconds": round(last["seconds"], 3),
        "device": describe_device(place),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train.devices")
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"], choices=["cpu", "cuda"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--epochs", type=int, default=2, help="the last one is timed")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY.PATH=VALUE")
    parser.add_argument("--folder", type=Path, help="of the log, kept for the next time")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser


if __name__ == "__main__":
    main()
