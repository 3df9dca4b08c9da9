"""Text for a terminal, without what steers it or what it cannot show.

rich's own `escape_control_codes` lets escape sequences and marks that turn text around pass.
"""

import codecs
import io
import sys
import unicodedata

# Controls, what turns the direction of text, halves of characters, line and paragraph separators
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ASCII = {
    "–": "-", "—": "-", "−": "-", "…": "...", "·": "*", "•": "*", "×": "x", "±": "+-", "→": "->",
    "≤": "<=", "≥": ">=", "≈": "~", "‘": "'", "’": "'", "“": '"', "”": '"', "─": "-", "━": "-",
    "═": "-", "╌": "-", "│": "|", "┃": "|", "║": "|",
}  # fmt: skip
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_BOXES, _BLOCKS = range(0x2500, 0x2580), range(0x2580, 0x25A0)


def readable(text: str, keep: str = "") -> str:
    r"""Writes out what would steer a terminal: escape sequences, line breaks.

    Names of columns, files and the like come from data that anybody may have written.

    Args:
        text: What is to be shown.
        keep: Characters that stay, such as "\n" in a whole table.

    Example:
        >>> print(readable("price\x1b[31m\n"), readable("a\u202eb"))
        price\x1b[31m\n a\u202eb
    """
    if text.isprintable():
        return text
    return "".join(
        character if character in keep or unicodedata.category(character) not in _UNSEEN
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )  # fmt: skip


def byte_size(count: int) -> str:
    """Writes a number of bytes in the largest unit that fits; 1 KiB is 1,024 bytes.

    Args:
        count: Bytes, 0 or more.

    Example:
        >>> byte_size(1_000), byte_size(1_024), byte_size(5 * 2**30 // 2)
        ('1,000 bytes', '1.0 KiB', '2.5 GiB')
    """
    power = min(max(0, count.bit_length() - 1) // 10, len(_UNITS) - 1)
    if power == 0:
        return f"{count:,} bytes"
    return f"{count / 2 ** (10 * power):,.1f} {_UNITS[power]}"


def show_what_can_be_shown() -> None:
    """Makes streams replace characters that they have no code for."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(map(_as_ascii, error.object[error.start : error.end]))
    return text, error.end


def _as_ascii(character: str) -> str:
    if character in _ASCII:
        return _ASCII[character]
    if ord(character) in _BOXES:
        return "+"
    if ord(character) in _BLOCKS:
        return "#"
    return character.encode("unicode_escape").decode("ascii")


_HANDLER = "mmoe.shown"
codecs.register_error(_HANDLER, _replaced)
