import numpy as np
import pyarrow as pa
import pytest

from mmoe.config import config_from_dict
from mmoe.datasets.labels.encode import TrainableCheck, encode_labels
from mmoe.datasets.rows.projection import required_columns


def configured(*tasks, **data):
    feature = {"kind": "numeric", "name": "x", "column": "x y"}
    tasks = [{"name": "t"} | task for task in tasks]
    for number, task in enumerate(tasks):
        task["name"] = task["name"] if number == 0 or task["name"] != "t" else f"t{number}"
    monitor = {"monitor": "mean.rmse"} if all("kind" in task for task in tasks) else {}
    return config_from_dict(
        {"features": [feature], "tasks": tasks, "data": data, "training": monitor}
    )


def encode(config, training=False, check=None, **columns):
    return encode_labels(config, pa.table(columns), "log.csv", training=training, check=check)


def values(labels, task=0):
    return [
        float(label) if observed else None
        for label, observed in zip(
            labels.labels_NT[:, task], labels.observed_NT[:, task], strict=True
        )
    ]


def test_binary_labels():
    for column, expected in (
        ([0, 1, None], [0, 1, None]),
        ([0.0, 1.0, float("nan")], [0, 1, None]),
        ([True, False, None], [1, 0, None]),
        (["0", "1", ""], [0, 1, None]),
        (["true", "false", "NA"], [1, 0, None]),
        (["1.0", "0", None], [1, 0, None]),
        (pa.array([None, None], pa.null()), [None, None]),
        (pa.array(["", None]), [None, None]),
        (pa.array([1, 0], pa.uint8()), [1, 0]),
        (pa.array([1, 0]).dictionary_encode(), [1, 0]),
    ):
        labels = encode(configured({"label": "y"}), y=column)
        assert values(labels) == expected
        assert labels.labels_NT.dtype == labels.weights_NT.dtype == np.float32
        assert not labels.labels_NT[~labels.observed_NT].any()


def test_the_label_is_a_column_before_it_is_an_expression():
    columns = {"a - b": [1, 0], "a": [5, 5], "class": [1, 0]}
    for label in ("a - b", "class"):
        assert values(encode(configured({"label": label}), **columns)) == [1, 0]
    labels = encode(
        configured({"label": "watch / length >= 0.9"}),
        watch=[9, 5, 1, None],
        length=[10, 10, 0, 10],
    )
    assert values(labels) == [1, 0, None, None]


def test_numbers_and_words_that_are_no_label():
    for value in (2, -1, 0.5, float("inf")):
        with pytest.raises(ValueError, match="expected 0 or 1") as caught:
            encode(configured({"label": "y"}), y=[0, 1, value])
        assert str(caught.value) == (
            f"log.csv: row 3: column 'y' of task 't' is {value!r}, expected 0 or 1 (or true, "
            'false, empty); write an expression such as "y > 0", or `kind: regression`'
        )
    with pytest.raises(ValueError, match="expected 0 or 1") as caught:
        encode(configured({"label": "my income"}), **{"my income": ["", "- 50000.", "50000+."]})
    assert "log.csv: row 2: column 'my income' of task 't' is '- 50000.'" in str(caught.value)
    assert "such as \"`my income` == '- 50000.'\"" in str(caught.value)


def test_regression():
    config = configured({"label": "y", "kind": "regression"})
    assert values(encode(config, training=True, y=[1.5, None, 7])) == [1.5, None, 7]
    assert values(encode(config, y=["1.5", "", "7"])) == [1.5, None, 7]
    for column, says in (
        ([1.0, float("-inf")], r"row 2: label 'y' of task 't' is -inf, expected a finite"),
        ([1e300], r"row 1: label 'y' of task 't' is 1e\+300, beyond float32"),
        (["a", "b"], r"row 1: task 't' is a regression, but its label 'y' is the text 'a', expect"),
        (["1.5", None, "7", "n/k"], r"row 4: .* label 'y' is the text 'n/k', expected a number"),
    ):
        with pytest.raises(ValueError, match=says):
            encode(config, y=column)
    below = configured({"label": "y", "kind": "regression", "target": "log"})
    with pytest.raises(ValueError, match=r"goes down to -1, but target: log is for 0 or more"):
        encode(below, training=True, y=[4.0, -1.0])
    with pytest.raises(ValueError, match="'t' has one value only among its 3 observed training"):
        encode(config, training=True, y=[4.0, 4.0, None, 4.0])


def test_labels_that_float32_would_merge_are_refused():
    config = configured({"label": "y", "kind": "regression"})
    near = np.arange(200) % 7
    for far in (1e9, 2.0**40, -1e12):
        with pytest.raises(
            ValueError, match=r"deviation of 2, .*float32.*such as `y` - -?1[.\d]*e"
        ):
            encode(config, training=True, y=(near + far).tolist())
    for right in (near + 1e6, near[:50]):
        assert len(values(encode(config, training=True, y=right.tolist()))) == len(right)


def test_labels_that_float32_would_merge_are_judged_over_all_chunks():
    config = configured({"label": "y", "kind": "regression"})
    rising, check = np.arange(6000) + 1.7e9, TrainableCheck(config)
    for start in range(0, 6000, 500):  # of one chunk the deviation is 144, and float32 errs by 37
        encode(config, y=rising[start : start + 500].tolist(), check=check)
    check.finish("log")
    [moments] = check.moments
    assert (moments.count, moments.mean) == (6000, pytest.approx(rising.mean(), rel=1e-15))
    assert moments.deviation == pytest.approx(rising.std())
    with pytest.raises(ValueError, match="deviation of 144, expected one that float32 can tell"):
        encode(config, training=True, y=rising[:500].tolist())


def test_observed_when_is_a_task_first_then_a_column_then_an_expression():
    click = {"name": "click", "label": "clicked"}
    buy = {"name": "buy", "label": "bought", "observed_when": "click"}
    columns = {"clicked": [1, 0, None, 1], "bought": [1, 1, 1, None], "click": [0, 1, 1, 1]}
    assert values(encode(configured(click, buy), **columns), 1) == [1, None, None, None]
    # The order of the tasks does not matter.
    assert values(encode(configured(buy, click), **columns), 0) == [1, None, None, None]
    by_column = configured(buy | {"observed_when": "seen"})
    assert values(encode(by_column, bought=[1, 0, 1, 0], seen=[1, 0, None, 1])) == [
        1, None, None, 0
    ]  # fmt: skip
    by_text = configured(buy | {"observed_when": "place in ('top', 'side')"})
    assert values(encode(by_text, bought=[1, 0, 1], place=["top", "end", None])) == [1, None, None]


def test_observed_when_chains():
    tasks = [
        {"name": "buy", "label": "b", "observed_when": "add"},
        {"name": "add", "label": "a", "observed_when": "click"},
        {"name": "click", "label": "c"},
    ]
    labels = encode(configured(*tasks), c=[1, 1, 0, 1], a=[1, 0, 1, None], b=[1, 1, 1, 1])
    assert values(labels, 0) == [1, None, None, None]
    assert values(labels, 1) == [1, 0, None, None]


@pytest.mark.parametrize(("tasks", "says"), [
    ([{"name": "a", "label": "x", "observed_when": "b"}, {"name": "b", "label": "x",
                                                          "observed_when": "a"}],
     r"goes round in a circle \(a → b → a\); remove one"),
    ([{"name": "a", "label": "x", "observed_when": "r"}, {"name": "r", "label": "x",
                                                          "kind": "regression"}],
     "which is a regression; write a condition such as x > 0"),
    ([{"label": "x", "observed_when": "n"}],
     "column 'n' of observed_when of task 't' is 3, expected"),
    ([{"label": "x", "observed_when": "shown"}],
     "no column 'shown', which observed_when of task 't' needs"),
])  # fmt: skip
def test_observed_when_errors(tasks, says):
    with pytest.raises(ValueError, match=says):
        encode(configured(*tasks), x=[0, 1], n=[1, 3])


def test_weights():
    config = configured({"label": "y", "weight_column": "w"}, {"label": "y"})
    labels = encode(config, y=[0, 1, None], w=[0.5, 2, None])
    assert labels.weights_NT.tolist() == [[0.5, 1], [2, 1], [0, 1]]
    for value, came in ((-1.0, "-1"), (None, "empty")):
        with pytest.raises(ValueError, match="expected a number of 0 or more") as caught:
            encode(config, y=[0, 1], w=[1.0, value])
        assert str(caught.value) == (
            f"log.csv: row 2: column 'w' (weight_column of task 't') is {came}, expected a number "
            "of 0 or more; mend the cell, or drop the row"
        )
    with pytest.raises(ValueError, match=r"row 1: column 'w' .* is inf, expected a finite number"):
        encode(config, y=[0, 1], w=[float("inf"), 1])


def test_groups():
    config = configured({"label": "y"}, group_column="g")
    for column, codes in (
        (["u", "v", "u", None], [0, 1, 0, -1]),
        ([7, 2**60, 7, None], [0, 1, 0, -1]),
        (pa.chunked_array([["u", "v"], ["v", "u"]]), [0, 1, 1, 0]),
    ):
        groups = encode(config, y=[0, 1, 0, 1], g=column).groups_N
        assert groups.dtype == np.int64 and groups.tolist() == codes
    groups = encode(config, y=[0, 1, 0, 1], g=[1.0, float("nan"), 1.0, 2.0]).groups_N
    assert groups[0] == groups[2] != groups[3] and groups[1] == -1
    assert encode(configured({"label": "y"}), y=[0, 1]).groups_N is None


def test_one_class_is_an_error_in_training_only():
    config = configured({"label": "y"})
    assert values(encode(config, y=[0, 0, None])) == [0, 0, None]
    with pytest.raises(ValueError, match="one class only") as caught:
        encode(config, training=True, y=[0, 0, None])
    assert str(caught.value) == (
        "log.csv: task 't' has one class only: all 2 observed training labels ('y') are 0, "
        "expected both 0 and 1; check the label and the split, or remove the task"
    )
    with pytest.raises(ValueError, match="task 't' has no observed label among 2 training rows"):
        encode(config, training=True, y=pa.array([None, None], pa.int64()))


def test_rows_of_which_none_counts_train_nothing():
    config = configured({"label": "y", "weight_column": "w"}, {"label": "y"})
    with pytest.raises(ValueError, match="so nothing would be learnt") as caught:
        encode(config, training=True, y=[0, 1, None], w=[0, 1e-60, 2])
    assert str(caught.value) == (
        "log.csv: column 'w' (weight_column of task 't') is 0 on all 2 training rows with a label, "
        "so nothing would be learnt; check the column, or remove weight_column or the task"
    )
    encode(config, training=True, y=[0, 1, None], w=[0, 0.1, 2])
    encode(config, y=[0, 1, None], w=[0, 0, 0])  # rows that are not trained on


def test_required_columns():
    config = configured(
        {"label": "a / b > 1", "weight_column": "w", "observed_when": "`c d` == 1"},
        {"label": "e-f", "observed_when": "t"},
        group_column="user",
        split={"by": "time", "column": "ts"},
    )
    assert required_columns(config) == ["x y", "a", "b", "w", "c d", "e", "f", "user", "ts"]
    assert required_columns(config, ["e-f"]) == ["x y", "a", "b", "w", "c d", "e-f", "user", "ts"]
    assert required_columns(config, labels=False) == ["x y"]
