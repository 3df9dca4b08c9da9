"""What a column's name says of its kind: a hint, no more."""

import re
from collections import Counter
from collections.abc import Iterable

_QUANTITIES = """
price cost fee tax amount amt total sum revenue income salary wage spend spent budget bid gain
gains loss losses profit balance margin discount score rating rate ratio pct percent percentage
share prob probability duration length len size width height weight area volume depth distance
dist age ages count counts cnt num nb qty quantity visits views clicks impressions pageviews
purchases orders times freq frequency hours minute minutes mins seconds secs days weeks months years
year dwell latency delay speed temperature temp humidity wind pressure lat lon lng latitude
longitude avg mean median min max std var variance popularity likes followers comments reviews
tenure recency points stars degree population capacity interest offset elapsed
"""
_IDS = """
user item ad ads video product query cat category categorical brand shop store seller campaign
creative author channel device city country region state zip postcode zipcode os tag topic slot
position site domain app customer member visitor buyer client account publisher advertiser
merchant vendor supplier carrier browser language lang genre segment cluster gender sex
occupation profession page article movie song track artist book game hotel property station
airport airline model make type class group host ip cookie session
"""
# After these a quantity is none: tax_filer_status, price_band
_SORTS = "status stat type group class kind category cat segment flag band bucket"
# What a compound ends on says what it is: price_id is an id, item_price a price
_KEYS = """
id ids uid uuid guid gid key hash code sku asin ean isbn upc msno zipcode postcode
"""
_QUANTITY_WORDS, _ID_WORDS, _KEY_WORDS, _SORT_WORDS = (
    frozenset(words.split()) for words in (_QUANTITIES, _IDS, _KEYS, _SORTS)
)
_ENDINGS = re.compile(r"(id|ids|uuid|key|code|no|nr)$")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_COUNTED = re.compile(r"^(n|num|nb|no|number)[_ .-]?of[_ .-]|^(n|num|nb)_", re.IGNORECASE)


def hint(name: str) -> int:
    """Returns 2 where a name says ids, 1 where it sounds so, −1 like a quantity, 0 like nothing.

    A quantity word beats an id word, but the last word says what a compound is.

    Example:
        >>> [hint(name) for name in ("item_price", "price_id", "userid", "c12", "age_group")]
        [-1, 2, 2, 0, 1]
    """
    words = [word.lower() for word in _WORDS.findall(name) if not word.isdigit()]
    if not words:
        return 0
    last = words[-1]
    if last in _KEY_WORDS:
        return 2
    if last in _SORT_WORDS:
        return 1
    if _COUNTED.search(name) or any(word in _QUANTITY_WORDS for word in words):
        return -1
    if any(word in _ID_WORDS or word in _KEY_WORDS for word in words):
        return 1
    stem = _ENDINGS.sub("", last)
    return 2 * int(stem != last and stem in _ID_WORDS)


def stems(names: Iterable[str]) -> dict[str, str]:
    """Returns of each column of a numbered family (C1, C2, … or cat_0 to cat_9) what they share.

    Example:
        >>> stems(["C1", "C2", "C13", "age", "x1"])
        {'C1': 'C', 'C2': 'C', 'C13': 'C'}
    """
    found = {name: re.sub(r"\d+$", "", name) for name in names if re.search(r"\d$", name)}
    counts = Counter(found.values())
    return {name: stem for name, stem in found.items() if counts[stem] >= 3}
