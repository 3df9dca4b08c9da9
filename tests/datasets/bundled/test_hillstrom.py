"""The Hillstrom recipe: rows, labels, split, and what is kept from the model."""

from pathlib import Path

import numpy as np
import pytest

from mmoe.config import RunConfig, load_config
from mmoe.datasets.bundled import hillstrom
from mmoe.datasets.labels.encode import encode_labels

HEADER = ",".join(hillstrom.COLUMNS)


@pytest.fixture(scope="module")
def recipe() -> RunConfig:
    return load_config(Path(hillstrom.__file__).parents[1] / "recipes" / "hillstrom.yaml")


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    rows = [
        f'{n},"6) $750 - $1,000",{n}.5,1,0,Urban,1,Web,No E-Mail,{n % 2},{int(n % 4 == 1)},0'
        for n in range(40)
    ]
    path = tmp_path / hillstrom.FILE
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_rows_and_label_rates(recipe: RunConfig, shared_data: Path) -> None:
    splits = hillstrom.load(recipe, shared_data / "hillstrom")
    parts = (splits.train, splits.validation, splits.test)
    assert [part.num_rows for part in parts] == [44_800, 6_400, 12_800]
    labels = [encode_labels(recipe, part, "hillstrom") for part in parts]
    visits, conversions = np.concatenate([label.labels_NT for label in labels]).sum(axis=0)
    assert round(visits / 64_000, 5) == 0.14678
    assert conversions == 578
    # A purchase is asked about where there was a visit, and nowhere else
    for label in labels:
        np.testing.assert_array_equal(label.observed_NT[:, 1], label.labels_NT[:, 0] == 1)


def test_no_label_is_an_input(recipe: RunConfig) -> None:
    columns = {feature.column or feature.name for feature in recipe.features}
    assert columns == set(hillstrom.COLUMNS) - {"visit", "conversion", "spend"}


def test_split_is_70_10_20_and_depends_on_split_seed_alone(
    recipe: RunConfig, small_file: Path
) -> None:
    def _parts(**changes: int) -> list[list[int]]:
        splits = hillstrom.load(recipe.model_copy(update=changes), small_file.parent)
        return [
            part["recency"].to_pylist() for part in (splits.train, splits.validation, splits.test)
        ]

    parts = _parts()
    assert [len(part) for part in parts] == [28, 4, 8]
    assert sorted(row for part in parts for row in part) == list(range(40))
    assert _parts(seed=5) == parts
    assert _parts(split_seed=2) != parts


def test_the_file_itself_may_be_given(recipe: RunConfig, small_file: Path) -> None:
    splits = hillstrom.load(recipe, small_file)
    assert splits.train["history_segment"][0].as_py() == "6) $750 - $1,000"
    assert splits.origin == str(small_file)


def test_missing_file_is_named(recipe: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"hillstrom\.csv: no such file; get .*MineThatData"):
        hillstrom.load(recipe, tmp_path)
    with pytest.raises(ValueError, match=r"hillstrom: needs --data"):
        hillstrom.load(recipe, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recency,visit\n1,0\n", r"is not Hillstrom's file: .*history_segment"),
        ("", r"is not Hillstrom's file: .*[Ee]mpty"),
        (
            HEADER + "\n" + "x,a,1,1,0,Rural,1,Web,No,0,0,0\n",
            r"is not Hillstrom's file: .*recency|x",
        ),
    ],
)
def test_other_content_is_refused(
    recipe: RunConfig, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / hillstrom.FILE
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        hillstrom.load(recipe, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
