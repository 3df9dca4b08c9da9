"""Files whole or not at all."""

import pytest

from mmoe.run.atomic_files import write_table, write_text


def test_what_cannot_be_written_leaves_nothing_beside_the_old_file(tmp_path):
    path = tmp_path / "config.yaml"
    write_text(path, "old")
    with pytest.raises(ValueError, match="length"):
        write_table(path, {"a": [1], "b": [1, 2]})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]
    assert path.read_text() == "old"
