"""Inside a process of `Ranks`: commands come from standard input, answers go to standard output."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO


def private_stdout() -> TextIO:
    """Standard output for answers alone; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def answer_commands(jobs: Mapping[str, Callable[..., dict[str, Any]]], answers: TextIO) -> None:
    """Says that this process is ready, and answers commands until there are no more.

    Args:
        jobs: From the name of a command to what is called with the command's other values.
        answers: Where answers go, a line each.
    """
    answer: dict[str, Any] = {"ready": True}
    while True:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        line = sys.stdin.readline()
        if not line.strip():
            return
        command = json.loads(line)
        answer = jobs[command.pop("do")](**command)
