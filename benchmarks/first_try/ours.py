"""The untouched config: `mmoe init`, `mmoe train`, `mmoe score`, without a look at the file."""

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import mmoe.cli

# The rivals' libraries are imported before they are timed, so these are too
import mmoe.embeddings.sharded.backend
import mmoe.train
from benchmarks.first_try.logs.log import Kinds
from mmoe.config import RunConfig, load_config


@dataclass(frozen=True)
class Trained:
    """Predictions of the untouched config with one seed."""

    scores: dict[str, np.ndarray]  # task → float32 [N]
    seconds: float


def command(*arguments: object) -> str:
    """Runs a command of mmoe in this process; returns what it prints.

    Raises:
        RuntimeError: It fails; the message is what it said.
    """
    text = io.StringIO()
    with _arguments(arguments), contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            mmoe.cli.main()
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"mmoe {arguments[0]}: {text.getvalue()[-2000:]}") from None
    return text.getvalue()


def inferred(log: Path, labels: Sequence[str], config: Path) -> tuple[RunConfig, float]:
    """Runs `mmoe init`: the config, and the seconds it took."""
    config.unlink(missing_ok=True)
    start = time.perf_counter()
    given = [part for label in labels for part in ("--label", label)]
    command("init", log, *given, "--out", config)
    return load_config(config), time.perf_counter() - start


def trained(config: Path, test: Path, seed: int, overrides: Sequence[str]) -> Trained:
    """Trains with a seed, and scores the test rows."""
    run, scored = config.with_name(f"run-{seed}"), config.with_name(f"scores-{seed}.parquet")
    shutil.rmtree(run, ignore_errors=True)
    given = [part for value in overrides for part in ("--set", value)]
    start = time.perf_counter()
    command("train", config, "--out", run, "--quiet", "--set", f"seed={seed}", *given)
    seconds = time.perf_counter() - start
    scored.unlink(missing_ok=True)
    command("score", run, "--input", test, "--output", scored, "--quiet")
    table = pq.read_table(scored)
    shutil.rmtree(run)
    scored.unlink()
    scores = {
        name.removeprefix("pred_"): table[name].to_numpy().astype(np.float32)
        for name in table.column_names
    }
    return Trained(scores, seconds)


def kinds_found(config: RunConfig, columns: Mapping[str, Kinds]) -> dict[str, str]:
    """Returns what each column was taken for: a kind of feature, `both`, or `left_out`."""
    found: dict[str, set[str]] = {name: set() for name in columns}
    for feature in config.features:
        if feature.kind == "cross":
            continue
        for column in feature.source_columns:
            found.get(column, set()).add(feature.kind)
    return {name: _one(kinds) for name, kinds in found.items()}


def _one(kinds: set[str]) -> str:
    if kinds == {"numeric", "categorical"}:
        return "both"
    return kinds.pop() if len(kinds) == 1 else "left_out" if not kinds else "several"


@contextlib.contextmanager
def _arguments(arguments: Sequence[object]) -> Iterator[None]:
    before, sys.argv = sys.argv, ["mmoe", *map(str, arguments)]
    try:
        yield
    finally:
        sys.argv = before
