"""Files that shrink, vanish or are overwritten while they are read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.faults.inputs.draft import ROW_GROUP, Draft, Expect, error
from mmoe.datasets.stream.source import StreamSource

Harm = Callable[[Path], object]


def _vanish(path: Path) -> None:
    path.unlink()


def _shrink(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def _grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"1,2,3\n")


def _overwrite(path: Path) -> None:
    path.write_bytes(b"X" * path.stat().st_size)


def _truncate(path: Path) -> None:
    path.write_bytes(b"")


HARMS = (_vanish, _shrink, _grow, _overwrite, _truncate)


def changes_while_read(draft: Draft) -> tuple[Expect, Callable[[], Any]]:
    """A file changes just before the n-th time that a piece of the stream is read.

    Returns:
        What must come, and a context in which the command is to run.
    """
    path, harm = draft.draw.choice(draft.files), draft.draw.choice(HARMS)
    # Every piece is read for the encoder first, and once more for the epoch
    pieces = sum(_pieces(draft, table.num_rows) for table in draft.tables)
    when = draft.draw.randrange(1, 2 * pieces)
    return error(path.name), lambda: _harmed(when, path, harm)


def _pieces(draft: Draft, rows: int) -> int:
    return 1 if draft.is_csv else -(-rows // ROW_GROUP)


@contextmanager
def _harmed(when: int, path: Path, harm: Harm) -> Iterator[None]:
    read, reads, done = StreamSource.read, 0, False

    def harmful(self: StreamSource, piece: Any, columns: list[str]) -> Iterator[Any]:
        nonlocal reads, done
        reads += 1
        # From then on, as soon as the file itself comes: later nobody might notice
        if reads >= when and not done and piece.file.address == str(path):
            done = True
            harm(path)
        yield from read(self, piece, columns)

    with patch.object(StreamSource, "read", harmful):
        yield
