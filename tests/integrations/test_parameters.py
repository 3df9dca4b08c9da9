"""Config keys as parameters, and pictures."""

import matplotlib.pyplot as plt
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from mmoe import MultiTaskRanker
from tests.integrations.small import SETTINGS, SMALL, rows

X, LABELS = rows(200)
Y = LABELS[["bought", "liked"]]


def test_config_keys_are_parameters():
    given = {"model.tower.hidden": [4]}
    ranker = MultiTaskRanker(settings=given).set_params(
        epochs=2, model__gate__kind="top_k", tasks__liked__weight=2
    )
    assert given == {"model.tower.hidden": [4]}
    assert ranker.settings["model.gate.kind"] == "top_k"
    parameters = clone(ranker).get_params()
    assert (parameters["epochs"], parameters["model__gate__kind"]) == (2, "top_k")
    assert parameters["tasks__liked__weight"] == 2
    assert "model__gate__kind" not in ranker.get_params(deep=False)
    with pytest.raises(ValueError, match="Invalid parameter 'modle'"):
        ranker.set_params(modle__gate__kind="top_k")


def test_a_search_over_config_keys():
    pipeline = make_pipeline(FunctionTransformer(), MultiTaskRanker(**SMALL))
    search = GridSearchCV(
        pipeline, {"multitaskranker__model__gate__kind": ["softmax", "sigmoid"]}, cv=2,
        error_score="raise",
    )  # fmt: skip
    search.fit(X, Y)
    best = search.best_params_["multitaskranker__model__gate__kind"]
    assert search.best_estimator_[-1].config_.model.gate.kind == best


@pytest.mark.parametrize(("wrong", "right"), [("mmo", "mmoe"), ("Shared-Bottom", "shared_bottom")])
def test_a_misspelt_model_is_answered_with_the_nearest(wrong, right):
    with pytest.raises(ValueError, match=f"model.kind: .* got '{wrong}'; did you mean '{right}'"):
        MultiTaskRanker(**SMALL, model=wrong).fit(X, Y)


@pytest.fixture(autouse=True)
def _no_figures_of_others():
    plt.close("all")


def test_pictures():
    # Without a wide part, which might leave experts nothing to learn
    alone = {**SMALL, "epochs": 2, "settings": {**SETTINGS, "model.wide": False}}
    ranker = MultiTaskRanker(**alone).fit(X, LABELS)
    gates = ranker.plot_gates()
    assert "bought" in [text.get_text() for text in gates.texts]
    curves = ranker.plot_learning_curves()
    assert [axes.get_title(loc="left") for axes in curves[:3]] == ["bought", "liked", "watched"]
    roc = ranker.plot_roc()
    assert [axes.get_title(loc="left") for axes in roc] == ["bought", "liked"]
    figures = {gates.figure, curves[0].figure, roc[0].figure}
    assert figures == {plt.figure(number) for number in plt.get_fignums()}
    plt.close("all")


def test_no_pictures():
    alone = SMALL | {"model": "single_task", "num_experts": None}
    ranker = MultiTaskRanker(**alone).fit(X, LABELS[["watched"]])
    with pytest.raises(ValueError, match="this model has no gates"):
        ranker.plot_gates()
    with pytest.raises(ValueError, match="no task is binary"):
        ranker.plot_roc()
    assert plt.get_fignums() == []
