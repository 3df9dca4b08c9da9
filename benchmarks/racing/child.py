"""What a process that is measured needs; its environment may lack mmoe."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

# Inside a process of `Ranks`: commands come from standard input, answers go to standard output


def private_stdout() -> TextIO:
    """Standard output for answers alone; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def answer_commands(jobs: Mapping[str, Callable[..., dict[str, Any]]], answers: TextIO) -> None:
    """Says that this process is ready, and answers commands until there are no more."""
    answer: dict[str, Any] = {"ready": True}
    while True:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        line = sys.stdin.readline()
        if not line.strip():
            return
        command = json.loads(line)
        answer = jobs[command.pop("do")](**command)


# fp32 products through oneDNN


@contextmanager
def onednn_products() -> Iterator[None]:
    """fp32 products through oneDNN instead of MKL, where `onednn_is_exact`.

    The setting allows bfloat16 inside, and a processor with AMX makes use of that.
    """
    matmul: Any = getattr(torch.backends.mkldnn, "matmul")  # noqa: B009 - unknown to its stubs
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def onednn_is_exact(device: str) -> bool:
    """Are fp32 products through oneDNN a choice here, and still fp32?"""
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    x = torch.randn(256, 256)
    with onednn_products():
        found = x @ x
    return bool((found - x @ x).norm() <= 1e-5 * (x @ x).norm())


# Processes of this machine, as Linux tells of them


def descendants(root: int) -> dict[int, str]:
    """Those that a process has started, and they in turn: number → command line."""
    found, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        process = int(folder.name)
        found[process] = command.decode(errors="replace")
        # "pid (name) state ppid …", and a name may hold spaces and brackets
        parents[process] = int(stat.rpartition(")")[2].split()[1])

    def descends(process: int) -> bool:
        while process in parents and process != root:
            process = parents[process]
        return process == root

    return {p: command for p, command in found.items() if p != root and descends(p)}
