"""What no scoring wrote stays, wherever in a folder of scores it lies and whatever it is."""

import pyarrow.parquet as pq
import pytest

from mmoe.score import score_files
from tests.score.listing import contents


@pytest.fixture(name="log")
def _log(funnel_table, tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(funnel_table[:50], path)
    return path


@pytest.mark.parametrize("mode", ["overwrite", "overwrite-partitions"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("_rejected/notes.txt", "_rejected/notes.txt"),
        ("_staging/notes.txt", "_staging/notes.txt"),
        ("_rejected", "_rejected"),
        ("_staging/00000-log.parquet/x", "_staging/00000-log.parquet/"),
        ("_rejected/00000-log.parquet/x", "_rejected/00000-log.parquet/"),
        ("00000-log.parquet/x", "00000-log.parquet/"),
        ("_SUCCESS/x", "_SUCCESS/"),
    ],
)
def test_what_is_not_ours_is_refused_before_anything_is_written(
    run, log, tmp_path, mode, name, told
):
    """A folder of a part's name would stop a scoring while files get their names."""
    out = tmp_path / "out"
    score_files(run, log, out)
    path = out / name
    if path.parent.is_file():
        path.parent.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    before = contents(out)
    with pytest.raises(ValueError, match=rf"holds {told}, which no scoring wrote"):
        score_files(run, log, out, mode=mode)
    assert contents(out) == before


def test_a_link_to_itself_is_no_place(run, log, tmp_path):
    out = tmp_path / "out"
    out.symlink_to(out)
    with pytest.raises((ValueError, OSError), match=r"link that leads back to itself|symbolic"):
        score_files(run, log, out, mode="overwrite")
