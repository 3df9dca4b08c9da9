"""What scikit-learn asks of every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from mmoe import MultiTaskRanker
from mmoe.integrations.sklearn import TaskClassifier, TaskRegressor
from tests.integrations.small import SETTINGS, SMALL

WHOLE = MultiTaskRanker(**SMALL)
# To reach the accuracy that is asked for
LONGER = MultiTaskRanker(
    epochs=8,
    batch_size=16,
    num_experts=2,
    seed=1,
    settings={**SETTINGS, "training.optimizer.learning_rate": 0.05},
)
CLASSIFIER = TaskClassifier(LONGER)
REGRESSOR = TaskRegressor(LONGER)

LEAKS = (
    "a column that alone predicts the label is left out as a leak, and here each of them does, or "
    "the best one"
)
NAMES = "columns 0 and 1 of a DataFrame keep their names, by which weights are initialised"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "rows are counted, not weighed, for buckets, vocabularies, held-out rows and batches; in "
        "one batch with the same encoder weights are repetitions (test_row_weights)"
    ),
    "check_pipeline_consistency": LEAKS,
}
OF_A_CLASSIFIER = {
    **EXPECTED,
    "check_classifiers_train": LEAKS,
    "check_classifier_data_not_an_array": NAMES,
}
OF_A_REGRESSOR = {**EXPECTED, "check_regressor_data_not_an_array": NAMES}
EXPECTED_OF = {
    MultiTaskRanker: EXPECTED,
    TaskClassifier: OF_A_CLASSIFIER,
    TaskRegressor: OF_A_REGRESSOR,
}


def _expected(estimator):
    return EXPECTED_OF[type(estimator)]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([WHOLE], expected_failed_checks=_expected)
def test_the_whole(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CLASSIFIER, REGRESSOR], expected_failed_checks=_expected)
def test_a_task_alone(estimator, check):
    check(estimator)
