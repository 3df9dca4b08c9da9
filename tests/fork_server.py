"""Forks Python programs from a process that has imported what they import: 50 ms a start, not 5 s.

    python tests/fork_server.py SOCKET_NUMBER

Reads requests from the socket: what to run as JSON, and with it four open files: a socket for its
process number, then its exit code and processor seconds, and its standard input, output and error.
A program ends with the server that started it. Only `tests/forked.py` talks to it.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, NoReturn

LARGEST = 1 << 20  # bytes of a request
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def serve(requests: socket.socket) -> dict[str, Any]:
    """Returns in the forked programs alone, each with its request."""
    # By the file that says when it has ended: the program, and whom to tell
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready, _, _ = select.select([requests, *running], [], [])
        for ended in running.keys() & ready:
            tell_end(*running.pop(ended))
            os.close(ended)
        if requests not in ready:
            continue
        message, (told, *standard), _, _ = receive(requests)
        program = os.fork()
        if program == 0:
            ends_with_its_parent()
            requests.close()
            for file in (told, *running, *(of_other for _, of_other in running.values())):
                os.close(file)
            for number, file in enumerate(standard):
                os.dup2(file, number)
                os.close(file)
            return json.loads(message)
        os.write(told, f"{program}".encode())
        for file in standard:
            os.close(file)
        running[os.pidfd_open(program)] = program, told


def receive(requests: socket.socket) -> tuple:
    """A request; ends the server where nobody is there any more."""
    found = socket.recv_fds(requests, LARGEST, 4)
    if not found[0]:
        os._exit(0)
    return found


def tell_end(program: int, told: int) -> None:
    """Its exit code and processor seconds."""
    _, status, used = os.wait4(program, 0)
    seconds = used.ru_utime + used.ru_stime
    # Nobody listens any more where a test was stopped
    with contextlib.suppress(OSError):
        os.write(told, f"{os.waitstatus_to_exitcode(status)} {seconds:.3f}".encode())
    os.close(told)


def ends_with_its_parent() -> None:
    """Whatever becomes of the tests, no program of theirs goes on."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(request: dict[str, Any]) -> None:
    """As `python -m MODULE …`, `python -c CODE …` or `python PATH …` does."""
    # A shell lets what it starts in the background ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for module in request["errors_of"]:
        warnings.filterwarnings("error", module=rf"{module}\Z")
    how, *arguments = request["arguments"]
    if how == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    elif how == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [how, *arguments]
        runpy.run_path(how, run_name="__main__")


def end(request: dict[str, Any]) -> NoReturn:
    """Runs it and ends as Python does, but for taking down its modules one by one: some seconds."""
    code: Any = 0
    try:
        run(request)
    except SystemExit as stop:
        code = stop.code or 0
        if not isinstance(code, int):
            code = print(code, file=sys.stderr) or 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Imports, then serves."""
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    import mmoe.checkpoint.plain_file
    import mmoe.cli
    import mmoe.cli.commands
    import mmoe.datasets.features
    import mmoe.datasets.recipes
    import mmoe.embeddings
    import mmoe.models
    import mmoe.parallel.launch.run_as_rank
    import mmoe.score
    import mmoe.train.backtest

    # What is imported where a command, a run or a config asks for it
    for name in "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer":
        importlib.import_module(name)
    for package in (mmoe.datasets.features, mmoe.models, mmoe.score, mmoe.run):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    if mmoe.embeddings.torchrec_problem() is None:
        import mmoe.embeddings.sharded.backend

    os.fsync = lambda descriptor: None  # as in conftest.py
    gc.freeze()  # no program goes through it, and copies it, to collect its own garbage
    end(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
