"""The command line: runs a command, on one process or as a rank; errors and exit codes."""

import os
import re
import sys
from contextlib import suppress
from typing import Any

import typer

from mmoe.cli.commands import app
from mmoe.cli.output import Stopped
from mmoe.errors import Rejected, is_out_of_memory
from mmoe.parallel.launch.launcher import has_launched
from mmoe.plugins import look_in_current_folder
from mmoe.process_settings import set_up, spare_collections
from mmoe.terminal import readable, show_what_can_be_shown

# What typer makes of Ctrl-C
INTERRUPTED = 130
# Scores that are not what was expected: a scheduler may tell them from what is wrongly asked
REJECTED = 3


def main() -> None:
    """Runs a command; an error the user can mend is one line and exit code 2."""
    show_what_can_be_shown()
    _spare_address_space()
    spare_collections()
    set_up()
    look_in_current_folder()
    if has_launched():
        # Where a rank ends, torch's C++ tells the others so with stack traces; we do in one line
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from mmoe.parallel.launch.run_as_rank import run_as_rank

        run_as_rank(_run_on_ranks, _asked())
    try:
        _run()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            sys.stderr.write("mmoe: interrupted\n")
        raise
    except Stopped as stop:
        sys.stderr.write(f"mmoe: interrupted; {stop}\n")
        sys.exit(INTERRUPTED)
    except Rejected as error:
        _say_error(str(error), code=REJECTED)
    except (ValueError, OSError) as error:
        _say_error(str(error))


def _spare_address_space() -> None:
    """Avoids Arrow's allocator where address space is limited: it reserves 128 MiB to 1 GiB."""
    with suppress(ImportError):  # Windows has no such limits
        import resource

        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def _asked() -> list[str]:
    """The arguments that all ranks must share. Those that train compare their configs, by key."""
    arguments = sys.argv[1:]
    trains = arguments[:1] == ["train"] and "--help" not in arguments
    return arguments[:1] if trains else arguments


def _run_on_ranks() -> None:
    """Runs as `_run`, but mistakes on the command line, and Ctrl-C, are exceptions too."""
    try:
        code = _run(standalone_mode=False)
    except _USAGE_ERROR as error:
        raise ValueError(error.format_message()) from None
    except Stopped as stop:
        raise KeyboardInterrupt(str(stop)) from None
    if code == INTERRUPTED:
        raise KeyboardInterrupt


# Typer has no name for it: it is click's, or since 0.26 typer's own
_USAGE_ERROR: Any = typer.BadParameter.__base__


def _run(*, standalone_mode: bool = True) -> Any:
    """Runs the command line; too little memory is an error the user can mend."""
    try:
        return app(args=repeat_flags(sys.argv[1:]), standalone_mode=standalone_mode)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        what = str(error) or "an allocation failed"
        scores = sys.argv[1:2] in (["evaluate"], ["score"])  # a trained model, and no --set
        raise ValueError(
            f"not enough memory ({what}); {_SMALLER_SCORING if scores else _SMALLER_TRAINING}"
        ) from error


_SMALLER_TRAINING = (
    "stream the rows with --set data.input=stream, or make smaller what is large: tables "
    "(hash_size, dim), batch_size, eval_batch_size, the model or "
    "data.streaming.shuffle_buffer_rows"
)
_SMALLER_SCORING = (
    "hold the tables in fewer bytes with --table-precision int8, share them out among ranks "
    "(torchrun), or take fewer rows at a time"
)


def _say_error(text: str, code: int = 2) -> None:
    sys.stderr.write(f"mmoe: error: {readable(' '.join(text.split()))}\n")
    sys.exit(code)


def repeat_flags(arguments: list[str]) -> list[str]:
    """`--keep a b` → `--keep a --keep b`, for the options that take several values (typer: one).

    Only where the positional argument comes first, as it does in every help text: otherwise a
    value could not be told from it. KEY.PATH=VALUE can, for `mmoe train --warm-start RUN --set …`.
    """
    comes_first = len(arguments) > 1 and not arguments[1].startswith("-")
    spread: list[str] = []
    flag = ""
    for argument in arguments:
        is_setting = flag == "--set" and re.match(r"[A-Za-z_][\w.]*=", argument)
        if argument.startswith("-"):
            flag = argument if argument in _SEVERAL_VALUES else ""
        elif flag and spread[-1] != flag and (comes_first or is_setting):
            spread.append(flag)
        spread.append(argument)
    return spread


_SEVERAL_VALUES = (
    "--set", "--keep", "--label", "--import", "--categorical", "--numeric", "--drop", "--tasks",
    "--fuse", "--expect", "--key", "--freeze",
)  # fmt: skip
