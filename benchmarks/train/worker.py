"""A contestant's process: `python -m benchmarks.train.worker SPEC` (started by `processes`)."""

import sys
from contextlib import nullcontext
from itertools import cycle

import torch

from benchmarks.racing.child import onednn_products, private_stdout
from benchmarks.train.pacer import Pacer
from benchmarks.train.workloads import Spec, read_batches


def main() -> None:
    """Trains as commands on standard input say; answers go to standard output, a line each."""
    answers = private_stdout()
    spec = Spec.from_json(sys.argv[1])
    torch.set_num_threads(spec.threads)
    if spec.kind == "mmoe":
        from benchmarks.parallel import collectives
        from benchmarks.train import step_parts
        from benchmarks.train.ours import run_ours

        run_ours(spec, Pacer({**step_parts.JOBS, **collectives.JOBS}, answers))
    elif spec.kind == "plain":
        _run_plain(spec, Pacer({}, answers))
    else:
        from benchmarks.train.peers import PEERS

        PEERS[spec.kind](spec, Pacer({}, answers))


def _run_plain(spec: Spec, pacer: Pacer) -> None:
    """Batches are tensors before the first step, and the same ones come round in every epoch."""
    from benchmarks.train.plain_torch import Lookups, PlainTorch

    rival = PlainTorch(spec.sizes, bf16=spec.precision == "bf16")
    batches = [Lookups(batch) for batch in read_batches(spec.sizes, spec.log.train, seed=0)]
    with onednn_products() if spec.onednn else nullcontext():
        pacer.started()
        for batch in cycle(batches):
            rival.step(batch)
            pacer.stepped(len(batch))


if __name__ == "__main__":
    main()
