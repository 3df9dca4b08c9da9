"""`python -m benchmarks.faults score`: broken inputs, kills, nights with faults upstream."""

import argparse
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import fsspec

from benchmarks.faults.ending import end, teller
from benchmarks.faults.nights.watch import watch_nights
from benchmarks.faults.ray_kills import kill_ray_scorings
from benchmarks.faults.score_inputs.pool import judge_scorings
from benchmarks.faults.scored_faults import scored_faults
from benchmarks.faults.scored_kills import kill_scorings, prepare

Say = Callable[[str], None]
Section = tuple[dict[str, int], bool]  # counts, and whether all is as it must be


def main(arguments: Sequence[str]) -> int:
    """Prints what came of each and, last, the counts; 1 where anything failed."""
    options = _options(arguments)
    folder = Path(tempfile.mkdtemp(prefix="mmoe-scores-"))
    say = teller()
    # First, while this process has no threads: each input is judged in a fork of it
    counts, passed = _inputs(options, folder, say)
    if options.only_input is None:
        for section in (_kills, _nights):
            more, well = section(options, folder, say)
            counts, passed = counts | more, passed and well
    return end(counts, passed, folder, say)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults score")
    parser.add_argument("--kills", type=int, default=20, help="scorings that are killed")
    parser.add_argument(
        "--ray-kills", type=int, default=6, help="scorings on Ray of which a process is killed"
    )
    parser.add_argument("--inputs", type=int, default=500, help="broken inputs")
    parser.add_argument("--only-input", type=int, metavar="NUMBER", help="judges this one alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="inputs at a time")
    parser.add_argument(
        "--months", type=int, default=1, help="logs of which 20 nights and 12 faults are scored"
    )
    parser.add_argument("--seed", type=int, default=0, help="of moments, inputs and logs")
    return parser.parse_args(arguments)


def _inputs(options: argparse.Namespace, folder: Path, say: Say) -> Section:
    only = options.only_input
    numbers = range(options.inputs) if only is None else [only]
    verdicts = judge_scorings(folder / "inputs", numbers, options.seed, say, jobs=options.jobs)
    found = Counter(verdict.verdict for verdict in verdicts)
    counts = {
        "inputs": len(verdicts),
        "inputs_harmless": found["harmless"],
        "inputs_refused": found["refused"] + found["rejected"],
        "inputs_tracebacks": found["traceback"],
        "inputs_half_written": found["half-written"],
        "silently_wrong": found["wrong"],
    }
    return counts, all(verdict.is_right for verdict in verdicts)


def _kills(options: argparse.Namespace, folder: Path, say: Say) -> Section:
    """Scorings that are killed, and what else may happen to one."""
    scoring = prepare(folder)
    say(f"undisturbed: {scoring.seconds:.1f} s, {len(scoring.files)} files")
    with _local_bucket() as bucket:
        say("a local S3 is there, too" if bucket else "without s3fs and moto: no bucket")
        killed = kill_scorings(scoring, folder, options.kills, options.seed, bucket, say)
    on_ray = kill_ray_scorings(scoring, folder, options.ray_kills, options.seed, say)
    faults = scored_faults(scoring, folder, say)
    counts = {
        "kills": len(killed),
        "kills_in_bucket": sum(one.where == "bucket" for one in killed),
        "died": sum(one.died for one in killed),
        "same_bytes": sum(one.difference is None for one in killed),
        "seen_too_early": sum(len(one.seen) for one in [*killed, *on_ray]),
        "ray_kills": len(on_ray),
        "ray_died": sum(one.died for one in on_ray),
        "ray_same_bytes": sum(one.difference is None for one in on_ray),
        "faults": len(faults),
        "faults_as_they_must_be": sum(one.wrong is None for one in faults),
    }
    passed = (
        counts["same_bytes"] == counts["kills"]
        and counts["ray_same_bytes"] == counts["ray_kills"]
        and counts["seen_too_early"] == 0
        and counts["faults_as_they_must_be"] == counts["faults"]
    )
    return counts, passed


def _nights(options: argparse.Namespace, folder: Path, say: Say) -> Section:
    seeds = range(options.seed, options.seed + options.months)
    nights = [n for seed in seeds for n in watch_nights(folder / f"month-{seed}", seed, say)]
    healthy = [night for night in nights if night.fault is None]
    broken = [night for night in nights if night.fault is not None]
    counts = {
        "nights": len(healthy),
        "nights_rejected": sum(night.code != 0 for night in healthy),
        "upstream_faults": len(broken),
        "upstream_faults_stopped": sum(night.stopped for night in broken),
    }
    missed = len(broken) - counts["upstream_faults_stopped"]
    return counts, counts["nights_rejected"] == 0 and missed <= options.months


@contextmanager
def _local_bucket() -> Iterator[str | None]:
    """The address of a bucket of moto's server on loopback; None where it is not installed."""
    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        yield None
        return
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    # The scorings are processes of their own, which find the bucket by what they inherit
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with patch.dict(os.environ, settings):
            fsspec.filesystem("s3").mkdir("scores")
            yield "s3://scores"
    finally:
        server.stop()
