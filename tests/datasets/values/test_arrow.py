import ctypes
import mmap
from types import SimpleNamespace

import pytest

from mmoe.datasets.values import arrow


@pytest.fixture(name="limited")
def _limited(monkeypatch):
    """As under `ulimit -v`; what glibc is told is collected."""
    told = []
    glibc = SimpleNamespace(mallopt=lambda *what: told.append(what))
    monkeypatch.setattr(arrow, "may_use_threads", lambda: False)
    monkeypatch.setattr(arrow, "is_tuned", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: glibc)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    return told


def test_threads_share_one_heap_where_memory_is_limited(limited, monkeypatch):
    arrow.check_room()
    assert limited == [(-8, 1)]
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")  # the user's own choice stands
    arrow.check_room()
    assert limited == [(-8, 1)]
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    monkeypatch.setattr(arrow, "is_tuned", lambda: False)  # a library leaves the process alone
    arrow.check_room()
    assert limited == [(-8, 1)]


@pytest.mark.usefixtures("limited")
def test_too_little_room_is_an_error_before_threads_are_started(monkeypatch):
    def no_room(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", no_room)
    with pytest.raises(MemoryError, match=r"\(ulimit -v\) leaves less than 64 MiB"):
        arrow.check_room()


def test_what_arrow_says_where_memory_is_short():
    found = arrow.out_of_memory(OSError("Failed to launch worker thread"), "log.parquet")
    assert str(found) == "log.parquet: Failed to launch worker thread"
    assert arrow.out_of_memory(OSError("no such file"), "log.parquet") is None
