"""Where rows of a file of JSON lines begin: the pass that finds the columns' types counts them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from mmoe.datasets.files.data_file import DataFile
from mmoe.datasets.files.json_lines import Block, look_through, rows_in
from mmoe.datasets.files.row_span import Cut, RowSpan, bounds_of, was_changed
from mmoe.datasets.files.text_files import is_packed


def cut_json(file: DataFile, every: int) -> Cut:
    """Cuts a file at each multiple of `every` rows.

    Types of columns are those that the whole file needs, which the file of the cut knows. Of the
    blocks in which a span begins the bytes are read a second time.

    Raises:
        ValueError: As `json_schema`.
    """
    if is_packed(file):
        return Cut(file, why_whole="is compressed")
    keys, blocks = look_through(file)
    if not all(block.is_lines for block in blocks):
        return Cut(file, why_whole="does not have one JSON object on each line")
    file = replace(file, keys=keys)
    bounds = bounds_of(sum(block.rows for block in blocks), every)
    begins = _begins(file, blocks, [first for first, _ in bounds])
    ends = [*(start for start, _ in begins[1:]), blocks[-1].end]
    spans = [
        RowSpan(*rows, pieces=((start, end),), line=line)
        for rows, (start, line), end in zip(bounds, begins, ends, strict=True)
    ]
    return Cut(file, spans)


def _begins(file: DataFile, blocks: Sequence[Block], rows: Sequence[int]) -> list[tuple[int, int]]:
    """First byte and number of the line of each of these rows, which ascend."""
    firsts = list(accumulate((block.rows for block in blocks), initial=0))
    found = []
    for number, some in groupby(rows, lambda row: bisect_right(firsts, row) - 1):
        block = blocks[number]
        [text] = file.ranges([(block.start, block.end)])
        starts_R, lines_R = rows_in(text)
        if len(starts_R) != block.rows:
            raise was_changed(file)
        places = [row - firsts[number] for row in some]
        found += [(block.start + int(starts_R[p]), block.line + int(lines_R[p])) for p in places]
    return found
