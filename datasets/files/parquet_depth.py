"""How deep a Parquet file's columns are nested, by its footer, before Arrow goes down into them.

Versions of Arrow before 26 end the process there. A footer is Thrift's compact protocol, of which
the list of columns and groups is read here, one after another.
"""

from collections.abc import Iterator

from mmoe.datasets.values.plain import MOST_DEPTH, too_deep

_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _TEXT = (1, 2), 3, (4, 5, 6), 7, 8
_LISTS, _MAP, _STRUCT, _UUID = (9, 10), 11, 12, 13
_SIZES = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
_SCHEMA, _NAME, _CHILDREN = 2, 4, 5  # fields of a footer, and of each element of its schema


def refuse_deep(footer: bytes, origin: str) -> None:
    """Refuses a footer whose schema is nested deeper than data is.

    What cannot be followed is left to Arrow, which says what is wrong with it.

    Args:
        footer: `FileMetaData`, as it is written.
        origin: Starts error messages.

    Raises:
        ValueError: A column, which it names, has more than `MOST_DEPTH` groups inside one another.
    """
    try:
        _follow(_Compact(footer), origin)
    except (IndexError, RecursionError):
        return


def _follow(compact: "_Compact", origin: str) -> None:
    for field, kind in compact.fields():
        if field == _SCHEMA and kind in _LISTS:
            break
        compact.skip(kind)
    else:
        return
    elements, _ = compact.list_header()
    _, top = compact.element()
    if elements - 1 - top <= MOST_DEPTH:
        return  # too few groups, as where no column has any
    column, left = b"", [top]  # of each group that is open, the elements to come
    for _ in range(elements - 1):
        while left and left[-1] <= 0:
            left.pop()
        name, children = compact.element()
        column = name if len(left) <= 1 else column
        if left:
            left[-1] -= 1
        left.append(children)
        if len(left) - 2 > MOST_DEPTH:
            raise too_deep(column.decode(errors="replace"), origin)


class _Compact:
    """Bytes of Thrift's compact protocol, and how far they have been read.

    Raises:
        IndexError: They end before what they hold.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yields number and kind of each field of a struct; who gets one has to read or skip it."""
        number = 0
        while (start := self._byte()) & 0x0F:
            step = start >> 4
            number = number + step if step else self.integer()
            yield number, start & 0x0F

    def element(self) -> tuple[bytes, int]:
        """Reads an element of a schema: its name, and how many follow that are inside it."""
        name, children = b"", 0
        for field, kind in self.fields():
            if field == _NAME and kind == _TEXT:
                size = self._varint()
                name = self.content[self.at : self.at + size]
                self.at += size
            elif field == _CHILDREN and kind in _INTEGERS:
                children = self.integer()
            else:
                self.skip(kind)
        return name, children

    def list_header(self) -> tuple[int, int]:
        """Reads how many items a list has, and their kind."""
        start = self._byte()
        size = start >> 4
        return (self._varint() if size == 15 else size), start & 0x0F

    def integer(self) -> int:
        """Reads a whole number."""
        found = self._varint()
        return (found >> 1) ^ -(found & 1)

    def skip(self, kind: int, *, in_list: bool = False) -> None:
        """Goes behind a value."""
        if kind in _BOOLEANS:
            self.at += in_list
        elif kind in _INTEGERS:
            self._varint()
        elif kind == _TEXT:
            self.at += self._varint()
        elif kind in _LISTS:
            size, item = self.list_header()
            for _ in range(size):
                self.skip(item, in_list=True)
        elif kind == _MAP:
            if size := self._varint():
                kinds = self._byte()
                for _ in range(size):
                    self.skip(kinds >> 4, in_list=True)
                    self.skip(kinds & 0x0F, in_list=True)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind in _SIZES:
            self.at += _SIZES[kind]
        else:
            raise IndexError
        if self.at > len(self.content):
            raise IndexError

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise IndexError
        return found | byte << shift
