"""Which format datetimes in text have: 24/11/2023, 11/24/2023, 24.11.2023 13:05, Nov 24, 2023."""

import re

import numpy as np
import pyarrow as pa

from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.written_datetimes import parse_format

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY_NAME = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
# What a date looks like, and how it may be read; {0} is the mark between its numbers
_DATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\d{4}([-/. ])\d{1,2}\1\d{1,2}", ("%Y{0}%m{0}%d",)),
    (r"\d{1,2}([-/. ])\d{1,2}\1\d{4}", ("%d{0}%m{0}%Y", "%m{0}%d{0}%Y")),
    (r"\d{1,2}([/.])\d{1,2}\1\d{2}", ("%d{0}%m{0}%y", "%m{0}%d{0}%y")),
    (r"\d{2}(-)\d{2}-\d{2}", ("%d-%m-%y", "%m-%d-%y", "%y-%m-%d")),
    (r"\d{8}()", ("%Y%m%d",)),
    (r"\d{14}()", ("%Y%m%d%H%M%S",)),
    (rf"\d{{1,2}}([-/ ]?){_MONTH}\1\d{{4}}", ("%d{0}%b{0}%Y", "%d{0}%B{0}%Y")),
    (rf"\d{{1,2}}([-/ ]){_MONTH}\1\d{{2}}", ("%d{0}%b{0}%y",)),
    (rf"\d{{1,2}}\. ()(?:{_MONTH}) \d{{4}}", ("%d. %b %Y", "%d. %B %Y")),
    (rf"{_MONTH}([- ])\d{{1,2}}, ?\d{{4}}", ("%b{0}%d, %Y", "%B{0}%d, %Y", "%b{0}%d,%Y")),
    (rf"{_MONTH}([-/ ])\d{{1,2}}\1\d{{4}}", ("%b{0}%d{0}%Y", "%B{0}%d{0}%Y")),
    (rf"{_MONTH}(\. )\d{{1,2}}, \d{{4}}", ("%b. %d, %Y",)),
    (rf"\d{{4}}([-/ ]){_MONTH}\1\d{{1,2}}", ("%Y{0}%b{0}%d", "%Y{0}%B{0}%d")),
)
_TIME = re.compile(
    r"(?P<mark>T|, | at | - |[ :])"
    r"(?P<hour>\d{1,2}):\d\d(?P<second>:\d\d(?P<fraction>\.\d{1,9})?)?"
    r"(?P<half> ?[AaPp]\.?[Mm]\.?)?(?P<zone> ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
)
# Those in which the year comes behind the time
_WHOLE = ("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S UTC %Y")
_GLANCE = 1000
_YEARS = ("1900-01-01", "2101-01-01")
_DATES_SHARE = 0.9  # of the rows, to be called dates though no one format reads them


def datetime_formats(texts: pa.Array) -> list[str]:
    """Lists the formats that read all of a column's distinct texts, the day first where both do.

    Where two read every text as the same day, one of them is enough.

    Example:
        >>> datetime_formats(pa.array(["24/11/2023", "01/02/2023"], pa.large_string()))
        ['%d/%m/%Y']
        >>> datetime_formats(pa.array(["04/11/2023", "01/02/2023"], pa.large_string()))
        ['%d/%m/%Y', '%m/%d/%Y']
    """
    first = texts[0].as_py()
    glance = texts.slice(0, _GLANCE)
    likely = [form for form in _candidates(first) if read_as(glance, form) is not None]
    found: list[tuple[str, np.ndarray]] = []
    for form in likely:
        micros_N = read_as(texts, form)
        if micros_N is not None and not any(np.array_equal(micros_N, m) for _, m in found):
            found.append((form, micros_N))
    return [form for form, _ in found]


def look_like_dates(texts: pa.Array) -> bool:
    """Returns whether most of them begin with a date of some form."""
    # RE2 has no backreferences: any mark will do
    forms = [
        pattern.replace(r"\1", "[-/. ]?") for pattern, _ in _DATES if not pattern.endswith("()")
    ]
    pattern = rf"^(?:{_DAY_NAME},? )?(?:{'|'.join(forms)})(?:[T ,].*)?$"
    share = pc.mean(pc.match_substring_regex(texts, pattern).cast(pa.float64())).as_py()
    return bool(share is not None and share >= _DATES_SHARE)


def read_and_unread(texts: pa.Array) -> list[str]:
    """Returns a text that the first one's best format reads, and one that it does not read."""
    column = pa.chunked_array([texts])
    found = [parse_format(column, form) for form in _candidates(texts[0].as_py())]
    if not found:
        return texts.slice(0, 2).to_pylist()
    best = min(found, key=lambda micros: micros.null_count)
    parts = (texts.filter(pc.is_valid(best)), texts.filter(pc.is_null(best)))
    return [text for part in parts for text in part.slice(0, 1).to_pylist()]


def _candidates(text: str) -> list[str]:
    """Formats that a text may have, by what it looks like."""
    if re.match(rf"{_DAY_NAME} {_MONTH} ", text):
        return list(_WHOLE)
    name = re.match(rf"({_DAY_NAME})(,? )", text)
    prefixes = [f"{day}{name[2]}" for day in ("%a", "%A")] if name else [""]
    rest = text[name.end() :] if name else text
    found = []
    for pattern, forms in _DATES:
        date = re.match(rf"{pattern}(?!\d)", rest)
        time = None if date is None else _time_format(rest[date.end() :])
        if date is not None and time is not None:
            found += [f"{p}{form.format(date[1])}{time}" for p in prefixes for form in forms]
    return found


def _time_format(text: str) -> str | None:
    """The format of what stands behind a date: nothing, a time, a zone; None if it is neither."""
    if not text:
        return ""
    time = _TIME.fullmatch(text)
    if time is None:
        return None
    form = f"{time['mark']}{'%I' if time['half'] else '%H'}:%M"
    form += ("" if time["second"] is None else ":%S") + ("" if not time["fraction"] else ".%f")
    if time["half"]:
        form += f"{' ' * time['half'].startswith(' ')}%p"
    zone = time["zone"] or ""
    blank, zone = " " * zone.startswith(" "), zone.strip()
    return form + blank + (zone if zone in ("UTC", "GMT", "") else "%z")


def read_as(texts: pa.Array, form: str) -> np.ndarray | None:
    """Returns microseconds where every text is a datetime of our times, else None."""
    micros = parse_format(pa.chunked_array([texts]), form)
    if micros.null_count:
        return None
    micros_N = micros.to_numpy()
    low, beyond = (int(np.datetime64(day, "us").astype(np.int64)) for day in _YEARS)
    return micros_N if ((micros_N >= low) & (micros_N < beyond)).all() else None
