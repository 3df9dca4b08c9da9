"""Runs commands of whichever mmoe is on the path, one after another, in one process.

Each line that it reads is a JSON list of `mmoe`'s arguments, or of the name of a function in
programs.py and its arguments; it answers with one line each. No line of this file may need a
module of the tree but `python -m mmoe` and what the tree's users import.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parent))
import programs  # beside this file

# What a command prints where it should not must not be taken for an answer
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def main() -> None:
    """Until there is nothing more to read."""
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        said, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
            code = _run(what, arguments)
        answer = {"code": code, "out": said.getvalue(), "error": wrong.getvalue()[-4_000:]}
        _answers.write(json.dumps(answer) + "\n")
        _answers.flush()


def _run(what: str, arguments: list[str]) -> int:
    try:
        if what == "mmoe":
            sys.argv = ["mmoe", *arguments]
            runpy.run_module("mmoe", run_name="__main__")
        else:
            getattr(programs, what)(*arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


if __name__ == "__main__":
    main()
