"""What is public is importable."""

from importlib import import_module


def test_every_public_name_is_there(repository):
    names = (repository / "tests" / "public_api.txt").read_text().split()
    assert len(names) > 200
    for full in names:
        module, _, name = full.rpartition(".")
        assert getattr(import_module(module), name) is not None, full
