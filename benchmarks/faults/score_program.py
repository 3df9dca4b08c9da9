"""`python -m benchmarks.faults score`: kills a scoring again and again; other things that break."""

import argparse
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import fsspec

from benchmarks.faults.ending import end, teller
from benchmarks.faults.ray_kills import kill_ray_scorings
from benchmarks.faults.scored_faults import scored_faults
from benchmarks.faults.scored_kills import kill_scorings, prepare


def main(arguments: Sequence[str]) -> int:
    """Prints what came of each and, last, the counts; 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults score")
    parser.add_argument("--kills", type=int, default=20, help="scorings that are killed")
    parser.add_argument(
        "--ray-kills", type=int, default=6, help="scorings on Ray of which a process is killed"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="mmoe-scores-"))
    say = teller()
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
    return end(counts, passed, folder, say)


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
