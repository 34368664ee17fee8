from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from sparrowboost import SparrowClassifier, SparrowRegressor


@pytest.mark.slow
@parametrize_with_checks(
    [
        SparrowClassifier(n_estimators=5, n_jobs=1),
        SparrowRegressor(n_estimators=20, learning_rate=0.3, n_jobs=1),
    ]
)
def test_the_contract_of_scikit_learn_is_kept(estimator, check):
    check(estimator)
