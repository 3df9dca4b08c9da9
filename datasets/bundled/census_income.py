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

# In the order of the files. Codes (industry, occupation, …) are whole numbers without an order.
COLUMNS: dict[str, pa.DataType] = {
    "age": pa.int64(),
    "class_worker": pa.string(),
    "det_ind_code": pa.int64(),
    "det_occ_code": pa.int64(),
    "education": pa.string(),
    "wage_per_hour": pa.int64(),
    "hs_college": pa.string(),
    "marital_stat": pa.string(),
    "major_ind_code": pa.string(),
    "major_occ_code": pa.string(),
    "race": pa.string(),
    "hisp_origin": pa.string(),
    "sex": pa.string(),
    "union_member": pa.string(),
    "unemp_reason": pa.string(),
    "full_or_part_emp": pa.string(),
    "capital_gains": pa.int64(),
    "capital_losses": pa.int64(),
    "stock_dividends": pa.int64(),
    "tax_filer_stat": pa.string(),
    "region_prev_res": pa.string(),
    "state_prev_res": pa.string(),
    "det_hh_fam_stat": pa.string(),
    "det_hh_summ": pa.string(),
    "instance_weight": pa.float64(),
    "mig_chg_msa": pa.string(),
    "mig_chg_reg": pa.string(),
    "mig_move_reg": pa.string(),
    "mig_same": pa.string(),
    "mig_prev_sunbelt": pa.string(),
    "num_emp": pa.int64(),
    "fam_under_18": pa.string(),
    "country_father": pa.string(),
    "country_mother": pa.string(),
    "country_self": pa.string(),
    "citizenship": pa.string(),
    "own_or_self": pa.int64(),
    "vet_question": pa.string(),
    "vet_benefits": pa.int64(),
    "weeks_worked": pa.int64(),
    "year": pa.int64(),
    "income_50k": pa.string(),
}


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
    if data is None and isinstance(config.data.path, str):
        data = Path(config.data.path)
    if data is None:
        raise ValueError(f"census-income: needs --data (or data.path in the config); {HOW_TO_GET}")
    for name in (TRAIN_FILE, TEST_FILE):
        if not (data / name).is_file():
            raise ValueError(f"{data / name}: no such file; {HOW_TO_GET}")
    return data


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
