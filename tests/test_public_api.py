"""What was public stays importable; a moved name warns."""

import warnings
from importlib import import_module

import pytest


def test_every_public_name_is_still_there(repository):
    """A name that has left its place says where it is now, once an import."""
    names = (repository / "tests" / "public_api.txt").read_text().split()
    assert len(names) > 200
    for full in names:
        module, _, name = full.rpartition(".")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = getattr(import_module(module), name)
        assert value is not None, full
        ours = [str(w.message) for w in caught if w.category is DeprecationWarning]
        for text in ours:
            assert text.startswith(f"{full} has moved: from mmoe"), text
            home, _, new = text.partition(": from ")[2].partition(" import ")
            assert getattr(import_module(home), new) is value, text


def test_a_moved_name_warns_where_it_is_imported():
    with pytest.warns(DeprecationWarning, match="from mmoe.run import RunDirectory") as caught:
        exec("from mmoe.score import RunDirectory", {"__name__": "somebody"})
    assert len(caught) >= 1


def test_a_name_that_never_was_is_no_attribute():
    with pytest.raises(AttributeError, match=r"module 'mmoe\.score' has no attribute 'nothing'"):
        import_module("mmoe.score").nothing  # noqa: B018
