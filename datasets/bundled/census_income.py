"""Census-Income (KDD): US census records of 1994 and 1995, the data set of the MMoE paper.

299,285 people, 40 columns of facts about each. The two tasks of the paper's first setting: does the
person earn more than 50,000 dollars a year, and was he or she never married?

The files have no header, and separate by a comma *and* a blank; `?` is a missing value, while `NA`
is one of the answers to the question of Hispanic origin and stays a value of its own.
"""

import bz2
import gzip
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from mmoe.config import RunConfig
from mmoe.datasets.bundled import raw_path
from mmoe.datasets.rows.splits import Splits
from mmoe.datasets.values.arrow import pc

TRAIN_FILE = "census-income.data.bz2"
TEST_FILE = "census-income.test.gz"
HOW_TO_GET = (
    "download the data set 'Census-Income (KDD)' from the UCI repository "
    "(https://archive.ics.uci.edu/dataset/117), and give the folder with "
    f"{TRAIN_FILE} and {TEST_FILE} as --data"
)
_INCOME_VALUES = ("- 50000.", "50000+.")

# Codes (industry, occupation, …) are whole numbers without an order
_WHOLE = """
    age det_ind_code det_occ_code wage_per_hour capital_gains capital_losses stock_dividends num_emp
    own_or_self vet_benefits weeks_worked year
"""
# In the order of the files
_NAMES = """
    age class_worker det_ind_code det_occ_code education wage_per_hour hs_college marital_stat
    major_ind_code major_occ_code race hisp_origin sex union_member unemp_reason full_or_part_emp
    capital_gains capital_losses stock_dividends tax_filer_stat region_prev_res state_prev_res
    det_hh_fam_stat det_hh_summ instance_weight mig_chg_msa mig_chg_reg mig_move_reg mig_same
    mig_prev_sunbelt num_emp fam_under_18 country_father country_mother country_self citizenship
    own_or_self vet_question vet_benefits weeks_worked year income_50k
"""
COLUMNS: dict[str, pa.DataType] = {
    name: pa.int64() if name in _WHOLE.split() else pa.string() for name in _NAMES.split()
} | {"instance_weight": pa.float64()}


def load(config: RunConfig, data: Path | None) -> Splits:
    """Reads both files; half of the test file validates, as in the paper.

    Args:
        config: `split_seed` picks the half: `test.sample(frac=0.5, random_state=split_seed)` in
            pandas' terms. It does not depend on `seed`.
        data: The folder with `census-income.data.bz2` and `census-income.test.gz`.

    Returns:
        199,523 rows to train on, 49,881 to validate and 49,881 to test on.

    Raises:
        ValueError: A file is missing or damaged; the message names it.
    """
    folder = _folder(config, data)
    train = read_census_file(folder / TRAIN_FILE)
    held_out = read_census_file(folder / TEST_FILE)
    chosen = pd.RangeIndex(held_out.num_rows).to_series()
    # By pandas: another generator would make another split of the same seed
    chosen = chosen.sample(frac=0.5, random_state=config.split_seed)
    validates = np.zeros(held_out.num_rows, dtype=bool)
    validates[chosen.to_numpy()] = True
    return Splits(
        train=train,
        validation=held_out.filter(pa.array(validates)),
        test=held_out.filter(pa.array(~validates)),
        oracle=None,
        origin=str(folder),
    )


def files(config: RunConfig, data: Path | None) -> dict[str, list[Path]]:
    """Returns the paths that `load` reads, with its arguments and errors."""
    folder = _folder(config, data)
    return {"all": [folder / TRAIN_FILE, folder / TEST_FILE]}


def read_census_file(path: Path) -> pa.Table:
    """Reads one file of the data set into a table with named columns.

    Args:
        path: A CSV file as published, plain or packed with gzip or bzip2.

    Returns:
        42 columns, named and typed as in `COLUMNS`; `?` is null.

    Raises:
        ValueError: The file is missing, cannot be unpacked, or is no Census-Income file.
    """
    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(_unpacked(path)),
            read_options=pyarrow.csv.ReadOptions(column_names=list(COLUMNS)),
            parse_options=pyarrow.csv.ParseOptions(quote_char=False),
            convert_options=pyarrow.csv.ConvertOptions(
                # The blank after the comma belongs to the value until it is trimmed below.
                column_types=COLUMNS,
                null_values=["?", " ?"],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(f"{path}: is no Census-Income file: {first_line}; {HOW_TO_GET}") from None
    columns = [
        pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column
        for column in table.columns
    ]
    table = pa.table(columns, names=table.column_names)
    _check_income(table, path)
    return table


def _folder(config: RunConfig, data: Path | None) -> Path:
    folder = raw_path(config, data, HOW_TO_GET)
    for name in (TRAIN_FILE, TEST_FILE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: no such file; {HOW_TO_GET}")
    return folder


def _unpacked(path: Path) -> bytes:
    try:
        packed = path.read_bytes()
        if path.suffix == ".bz2":
            return bz2.decompress(packed)
        return gzip.decompress(packed) if path.suffix == ".gz" else packed
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); the file is damaged: {HOW_TO_GET}"
        ) from None


def _check_income(table: pa.Table, path: Path) -> None:
    """The label is compared with a text, so another text would count as a low income in silence."""
    income = table["income_50k"]
    wrong = pc.fill_null(pc.invert(pc.is_in(income, pa.array(_INCOME_VALUES))), True)
    if pc.any(wrong).as_py():
        row = wrong.index(True).as_py()
        raise ValueError(
            f"{path}: row {row + 1}, column income_50k (the last one): expected one of "
            f"{_INCOME_VALUES}, got {income[row].as_py()!r}; {HOW_TO_GET}"
        )
