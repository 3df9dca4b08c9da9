"""Hillstrom's e-mail challenge (MineThatData, 2008): 64,000 customers of a shop, three mailings.

Two tasks that follow one another: did the customer visit the shop's site in the two weeks after the
mailing, and, having visited, did he or she buy? The amount spent is known to be positive exactly
when there was a purchase, so it is left out of the inputs.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from mmoe.config import RunConfig
from mmoe.datasets.bundled import raw_path
from mmoe.datasets.rows.splits import Splits

FILE = "hillstrom.csv"
_TRAIN_SHARE, _VALIDATION_SHARE = 0.7, 0.1
HOW_TO_GET = (
    "get 'Kevin Hillstrom_MineThatData_E-MailAnalytics_DataMiningChallenge_2008.03.20.csv' "
    f"(https://blog.minethatdata.com), name it {FILE}, and give its folder as --data"
)
COLUMNS: dict[str, pa.DataType] = {
    "recency": pa.int64(),
    "history_segment": pa.string(),
    "history": pa.float64(),
    "mens": pa.int64(),
    "womens": pa.int64(),
    "zip_code": pa.string(),
    "newbie": pa.int64(),
    "channel": pa.string(),
    "segment": pa.string(),
    "visit": pa.int64(),
    "conversion": pa.int64(),
    "spend": pa.float64(),
}


def load(config: RunConfig, data: Path | None) -> Splits:
    """Reads the file and splits it at random, 70 : 10 : 20.

    Args:
        config: `split_seed` decides which row goes where, independent of `seed`.
        data: The folder with `hillstrom.csv`, or the file itself.

    Returns:
        44,800 rows to train on, 6,400 to validate and 12,800 to test on.

    Raises:
        ValueError: The file is missing or has other columns; the message names it.
    """
    path = _path(config, data)
    table = _read(path)
    order = np.random.default_rng(config.split_seed).permutation(table.num_rows)
    first = round(table.num_rows * _TRAIN_SHARE)
    second = first + round(table.num_rows * _VALIDATION_SHARE)
    train, validation, test = (
        table.take(pa.array(np.sort(rows))) for rows in np.split(order, [first, second])
    )
    return Splits(train=train, validation=validation, test=test, oracle=None, origin=str(path))


def files(config: RunConfig, data: Path | None) -> dict[str, list[Path]]:
    """Returns the paths that `load` reads, with its arguments and errors."""
    return {"all": [_path(config, data)]}


def _path(config: RunConfig, data: Path | None) -> Path:
    data = raw_path(config, data, HOW_TO_GET)
    path = data / FILE if data.is_dir() else data
    if not path.is_file():
        raise ValueError(f"{path}: no such file; {HOW_TO_GET}")
    return path


def _read(path: Path) -> pa.Table:
    options = pyarrow.csv.ConvertOptions(column_types=COLUMNS, include_columns=list(COLUMNS))
    try:
        return pyarrow.csv.read_csv(path, convert_options=options)
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(f"{path}: is not Hillstrom's file: {first_line}; {HOW_TO_GET}") from None
