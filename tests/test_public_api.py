"""What a room says is public can be imported from it, though it is looked up on first use alone."""

import pkgutil
from importlib import import_module

import mmoe


def test_every_public_name_is_there():
    below = pkgutil.walk_packages(mmoe.__path__, "mmoe.")
    rooms = [mmoe, *(import_module(found.name) for found in below if found.ispkg)]
    names = [(room, name) for room in rooms for name in getattr(room, "__all__", ())]
    assert len(names) > 200
    for room, name in names:
        assert getattr(room, name) is not None, (room, name)
