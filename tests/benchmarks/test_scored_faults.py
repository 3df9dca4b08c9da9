"""The harness that kills scorings: what it must notice, it does."""

from benchmarks.faults.scored_kills import Watcher, contents, first_difference

WHOLE = {"0.parquet": b"rows", "day=1/1.parquet": b"more", "_manifest.json": b"{}", "_SUCCESS": b""}


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def watched(folder, *steps):
    """What is wrong after some states of a folder."""
    watcher = Watcher(str(folder), WHOLE)
    for files in steps:
        write(folder, files)
        watcher.look()
    return watcher.wrong


def test_what_is_published_whole_is_right(tmp_path):
    first = {"0.parquet": b"rows", "_staging/x.parquet": b"ha", "_staging/x.parquet.json": b"{"}
    assert watched(tmp_path / "out", {}, first, WHOLE) == []


def test_a_half_written_file_under_its_name_is_noticed(tmp_path):
    (wrong,) = watched(tmp_path / "out", {"0.parquet": b"ro"}, WHOLE)
    assert wrong == "0.parquet: 2 bytes that are not the whole file"
    assert watched(tmp_path / "other", {"2.parquet": b"rows"})[0].startswith("2.parquet: 4 bytes")


def test_success_before_all_is_there_is_noticed(tmp_path):
    (wrong,) = watched(tmp_path / "out", {"0.parquet": b"rows", "_SUCCESS": b""})
    assert wrong == "_SUCCESS without _manifest.json, day=1/1.parquet"


def test_the_first_difference_is_named(tmp_path):
    write(tmp_path, WHOLE)
    assert first_difference(WHOLE, contents(tmp_path)) is None
    write(tmp_path, {"0.parquet": b"row", "day=1/2.parquet": b""})
    assert first_difference(WHOLE, contents(tmp_path)) == "0.parquet has other bytes"
    write(tmp_path, {"0.parquet": b"rows"})
    assert first_difference(WHOLE, contents(tmp_path)) == "day=1/2.parquet is left behind"
    (tmp_path / "0.parquet").unlink()
    assert first_difference(WHOLE, contents(tmp_path)) == "0.parquet is missing"
