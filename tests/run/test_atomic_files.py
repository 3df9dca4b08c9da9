"""Small files are there whole, or not at all."""

import subprocess
import sys

import pytest

from mmoe.run import write_text
from mmoe.run.folder_claim import contents


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "config.yaml", "name: \ud800")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_described_by_its_first_five_names(tmp_path):
    for name in "abcdefg":
        (tmp_path / name).touch()
    assert contents(tmp_path) == "a, b, c, d, e and 2 more"


def test_the_door_of_runs_reads_no_tables():
    code = "import sys, mmoe.run; print({'torch', 'pyarrow', 'pandas'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
