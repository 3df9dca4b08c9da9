"""The tables of keys in mmoe/config/README.md are made of the config's own models."""

import pytest

from mmoe.config.kinds import Strict
from mmoe.config.reference import README, reference, rewritten


def test_the_chapter_lists_the_keys_as_they_are():
    page = README.read_text(encoding="utf-8")
    message = "mmoe/config/README.md is out of date: python -m mmoe.config.reference --write"
    assert rewritten(page) == page, message


def test_a_key_without_a_description_and_a_page_without_the_marks_are_refused():
    class Undescribed(Strict):
        """A section."""

        width: int = 1

    with pytest.raises(ValueError, match=r"^width: has no description"):
        reference(Undescribed)
    with pytest.raises(ValueError, match=r"README\.md: expected the lines"):
        rewritten("# A page\n")
