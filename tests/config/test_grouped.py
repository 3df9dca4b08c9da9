"""Tasks that compare rows of a group: what is refused, and which column is read."""

import pytest

from mmoe.config import config_from_dict
from mmoe.config.tasks import NdcgConfig
from mmoe.datasets.rows.projection import required_columns


def config(*tasks, **data):
    return config_from_dict(
        {
            "data": data,
            "features": [{"kind": "categorical", "name": "item"}],
            "tasks": [
                {"name": f"t{n}", "label": f"t{n}", "kind": "bpr", **task}
                for n, task in enumerate(tasks)
            ],
        }
    )


@pytest.mark.parametrize(("tasks", "data", "message"), [
    ([{}], {}, "task 't0': kind bpr compares rows of one group; say `group:`"),
    ([{"group": "a"}, {"group": "b"}], {}, "group is 'b', but another task's is 'a'"),
    ([{"group": "a"}, {}], {"group_column": "b"}, "group is 'b', but another task's is 'a'"),
    ([{"group": "a", "negative_sampling_rate": 0.5}], {}, "predictions of kind bpr are scores"),
    ([{"group": "a", "pointwise_weight": 1}], {}, "pointwise_weight"),
    ([{"kind": "binary", "group": "a"}], {}, "group"),
    ([{"group": "a"}], {"input": "stream", "path": "x"}, "set data.input: memory"),
])  # fmt: skip
def test_refused(tasks, data, message):
    with pytest.raises(ValueError, match=message):
        config(*tasks, **data)


def test_the_groups_column_is_read_with_labels():
    made = config({"group": "session"}, {"kind": "binary"}, group_column="user")
    assert required_columns(made) == ["item", "t0", "t1", "user", "session"]
    assert required_columns(made, labels=False) == ["item"]
    assert made.compared_group == "session"
    assert config({"kind": "binary"}).compared_group is None
    assert (
        config({"kind": "jrc", "negative_sampling_rate": 0.5}, group_column="u").compared_group
        == "u"
    )


@pytest.mark.parametrize("metric", ["gauc", "ndcg"])
def test_what_is_computed_by_group_needs_one(metric):
    task = {"name": "click", "label": "click", "kind": "softmax", "group": "session"}
    task["metrics"] = [{"kind": "ndcg", "k": 5}]
    raw = {
        "features": [{"kind": "numeric", "name": "age"}],
        "tasks": [task],
        "training": {"monitor": f"click.{metric}"},
    }
    with pytest.raises(ValueError, match=r"computed by group; say data.group_column, such as"):
        config_from_dict(raw)
    grouped = {**raw, "data": {"group_column": "user"}}
    assert config_from_dict(grouped).tasks[0].metrics == [NdcgConfig(k=5)]
    binary = {"name": "click", "label": "click", "metrics": [{"kind": "ndcg"}]}
    raw["training"], grouped["training"] = {}, {}
    with pytest.raises(ValueError, match=r"'click': metrics: ndcg is .* say data.group_column"):
        config_from_dict({**raw, "tasks": [binary]})
    with pytest.raises(ValueError, match="ndcg judges probabilities"):
        config_from_dict({**grouped, "tasks": [{**binary, "kind": "regression"}]})
