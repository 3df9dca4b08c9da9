"""The Census-Income recipe: rows, labels, what is kept from the model, and damaged files."""

import bz2
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import RunConfig, load_config
from mmoe.datasets import recipes
from mmoe.datasets.bundled import census_income, hillstrom
from mmoe.datasets.labels.encode import encode_labels

RECIPES = Path(recipes.__file__).parent
LEAKS = {
    "census-income": {"income_50k", "marital_stat", "instance_weight", "education"},
    "census-income-with-education": {"income_50k", "marital_stat", "instance_weight"},
    "census-income-group2": {"education", "marital_stat", "instance_weight"},
}
# The first row of the published test file
LINE = (
    "38, Private, 6, 36, 1st 2nd 3rd or 4th grade, 0, Not in universe, Married-civilian spouse "
    "present, Manufacturing-durable goods, Machine operators assmblrs & inspctrs, White, Mexican "
    "(Mexicano), Female, Not in universe, Not in universe, Full-time schedules, 0, 0, 0, Joint one "
    "under 65 & one 65+, Not in universe, Not in universe, Spouse of householder, Spouse of "
    "householder, 1032.38, ?, ?, ?, Not in universe under 1 year old, ?, 4, Not in universe, "
    "Mexico, Mexico, Mexico, Foreign born- Not a citizen of U S , 0, Not in universe, 2, 12, 95, "
    "- 50000."
)


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "census-income"


@pytest.fixture(scope="module")
def recipe() -> RunConfig:
    return load_config(RECIPES / "census-income.yaml")


@pytest.fixture(scope="module")
def splits(folder: Path, recipe: RunConfig) -> census_income.Splits:
    return census_income.load(recipe, folder)


def test_rows_label_rates_and_missing_values(splits: census_income.Splits, folder: Path) -> None:
    counts = (splits.train.num_rows, splits.validation.num_rows, splits.test.num_rows)
    assert counts == (199_523, 49_881, 49_881)
    assert splits.train["mig_chg_msa"].null_count == 99_696
    assert splits.train["hisp_origin"].null_count == 0
    assert splits.train["hisp_origin"].to_pylist().count("NA") == 874, "an answer"
    for name, leaks in LEAKS.items():
        config = load_config(RECIPES / f"{name}.yaml")
        labels = encode_labels(config, splits.train, "train")
        assert labels.observed_NT.all()
        rates = [0.1964 if name.endswith("group2") else 0.06206, 0.43346]
        np.testing.assert_allclose(labels.labels_NT.mean(axis=0), rates, atol=6e-5)
        columns = {feature.column or feature.name for feature in config.features}
        assert columns == set(census_income.COLUMNS) - leaks, "no label is an input"
    # Validation is the half that pandas samples
    held_out = census_income.read_census_file(folder / census_income.TEST_FILE)
    weights = held_out["instance_weight"].to_pandas()
    chosen = weights.sample(frac=0.5, random_state=1)
    halves = chosen.sort_index(), weights.drop(chosen.index)
    for part, half in zip((splits.validation, splits.test), halves, strict=True):
        assert part["instance_weight"].to_pylist() == half.tolist()


@pytest.fixture
def small_folder(tmp_path: Path) -> Path:
    """Ten rows in each file, told apart by age."""
    lines = [LINE.replace("38,", f"{age},", 1) for age in range(20, 30)]
    text = "\n".join(lines) + "\n"
    (tmp_path / census_income.TEST_FILE).write_bytes(gzip.compress(text.encode()))
    (tmp_path / census_income.TRAIN_FILE).write_bytes(bz2.compress(text.encode()))
    return tmp_path


def test_split_depends_on_split_seed_alone(recipe: RunConfig, small_folder: Path) -> None:
    def _ages(**changes: int) -> tuple[list[int], list[int]]:
        config = recipe.model_copy(update=changes)
        splits = census_income.load(config, small_folder)
        return splits.validation["age"].to_pylist(), splits.test["age"].to_pylist()

    validation, test = _ages()
    assert sorted(validation + test) == list(range(20, 30))
    assert len(validation) == 5
    assert _ages(seed=7) == (validation, test)
    assert _ages(split_seed=2) != (validation, test)


def test_values_are_trimmed_and_typed(recipe: RunConfig, small_folder: Path) -> None:
    table = census_income.read_census_file(small_folder / census_income.TEST_FILE)
    assert table.schema == pa.schema(list(census_income.COLUMNS.items()))
    first = table.slice(0, 1).to_pylist()[0]
    assert first["class_worker"] == "Private"
    assert first["citizenship"] == "Foreign born- Not a citizen of U S"
    assert first["mig_chg_reg"] is None
    assert first["det_occ_code"] == 36
    assert first["income_50k"] == "- 50000."
    data = recipe.data.model_copy(update={"path": str(small_folder)})
    splits = census_income.load(recipe.model_copy(update={"data": data}), None)
    assert (splits.train.num_rows, splits.origin) == (10, str(small_folder))


def test_missing_and_truncated_files_are_named(recipe: RunConfig, small_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"census-income: needs --data .* UCI"):
        census_income.load(recipe, None)
    for name in (census_income.TEST_FILE, census_income.TRAIN_FILE):
        packed = (small_folder / name).read_bytes()
        (small_folder / name).write_bytes(packed[: len(packed) // 2])
        with pytest.raises(ValueError, match=rf"{name}: cannot be read .*damaged"):
            census_income.load(recipe, small_folder)
        (small_folder / name).write_bytes(packed)
    (small_folder / census_income.TEST_FILE).unlink()
    with pytest.raises(ValueError, match=r"census-income\.test\.gz: no such file; download .*117"):
        census_income.load(recipe, small_folder)


@pytest.mark.parametrize(("text", "message"), [
    ("a, b, c\n", r"no Census-Income file: .*[Ee]xpected 42 columns, got 3"),
    ("", r"no Census-Income file: .*[Ee]mpty"),
    (LINE.replace("38,", "old,") + "\n", r"no Census-Income file: .*old"),
    (LINE + "\n" + LINE.replace("- 50000.", "50000") + "\n",
     r"row 2, column income_50k .*expected one of .*, got '50000'"),
])  # fmt: skip
def test_other_content_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "census.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        census_income.read_census_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


HEADER = ",".join(hillstrom.COLUMNS)


@pytest.fixture(scope="module")
def hillstrom_recipe() -> RunConfig:
    return load_config(Path(recipes.__file__).parent / "hillstrom.yaml")


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    rows = [
        f'{n},"6) $750 - $1,000",{n}.5,1,0,Urban,1,Web,No E-Mail,{n % 2},{int(n % 4 == 1)},0'
        for n in range(40)
    ]
    path = tmp_path / hillstrom.FILE
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_rows_and_label_rates(hillstrom_recipe: RunConfig, shared_data: Path) -> None:
    splits = hillstrom.load(hillstrom_recipe, shared_data / "hillstrom")
    parts = (splits.train, splits.validation, splits.test)
    assert [part.num_rows for part in parts] == [44_800, 6_400, 12_800]
    labels = [encode_labels(hillstrom_recipe, part, "hillstrom") for part in parts]
    visits, conversions = np.concatenate([label.labels_NT for label in labels]).sum(axis=0)
    assert round(visits / 64_000, 5) == 0.14678
    assert conversions == 578
    # A purchase is asked about where there was a visit, and nowhere else
    for label in labels:
        np.testing.assert_array_equal(label.observed_NT[:, 1], label.labels_NT[:, 0] == 1)


def test_the_file_itself_may_be_given(hillstrom_recipe: RunConfig, small_file: Path) -> None:
    splits = hillstrom.load(hillstrom_recipe, small_file)
    assert splits.train["history_segment"][0].as_py() == "6) $750 - $1,000"
    assert splits.origin == str(small_file)
    columns = {feature.column or feature.name for feature in hillstrom_recipe.features}
    assert columns == set(hillstrom.COLUMNS) - {"visit", "conversion", "spend"}


def test_split_is_70_10_20_and_depends_on_split_seed_alone(
    hillstrom_recipe: RunConfig, small_file: Path
) -> None:
    def _parts(**changes: int) -> list[list[int]]:
        splits = hillstrom.load(hillstrom_recipe.model_copy(update=changes), small_file.parent)
        return [
            part["recency"].to_pylist() for part in (splits.train, splits.validation, splits.test)
        ]

    parts = _parts()
    assert [len(part) for part in parts] == [28, 4, 8]
    assert sorted(row for part in parts for row in part) == list(range(40))
    assert _parts(seed=5) == parts
    assert _parts(split_seed=2) != parts


def test_a_missing_file_of_hillstrom_is_named(hillstrom_recipe: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"hillstrom\.csv: no such file; get .*MineThatData"):
        hillstrom.load(hillstrom_recipe, tmp_path)
    with pytest.raises(ValueError, match=r"hillstrom: needs --data"):
        hillstrom.load(hillstrom_recipe, None)


@pytest.mark.parametrize(("text", "message"), [
    ("recency,visit\n1,0\n", r"is not Hillstrom's file: .*history_segment"),
    ("", r"is not Hillstrom's file: .*[Ee]mpty"),
    (HEADER + "\n" + "x,a,1,1,0,Rural,1,Web,No,0,0,0\n", r"is not Hillstrom's file: .*recency|x"),
])  # fmt: skip
def test_other_content_than_hillstroms_is_refused(
    hillstrom_recipe: RunConfig, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / hillstrom.FILE
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        hillstrom.load(hillstrom_recipe, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
