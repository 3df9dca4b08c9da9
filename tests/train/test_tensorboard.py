import pytest

from mmoe.train.loggers import EventLog


class _Full:
    """A file on a disk that is full."""

    def write(self, _):
        raise OSError(28, "No space left on device")

    def flush(self):
        self.write(b"")

    def close(self):
        self.write(b"")


def _write_until_the_disk_is_full(folder, error=None):
    with EventLog(folder, 0) as log:
        log.file.close()
        log.file = _Full()
        if error is not None:
            raise error


def test_a_disk_that_is_full_at_the_end_is_named(tmp_path):
    with pytest.raises(OSError, match=r"events: TensorBoard's events cannot be written: .* space"):
        _write_until_the_disk_is_full(tmp_path / "events")


def test_the_error_that_ended_training_is_the_one_that_is_said(tmp_path):
    with pytest.raises(ValueError, match="diverged"):
        _write_until_the_disk_is_full(tmp_path / "events", ValueError("diverged"))
