from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from sparrowboost import SparrowClassifier

# Weights count by their proportions: l2 and min_child_weight are in rows of ordinary weight, so
# that doubling all weights changes nothing, where repeating all rows proves more. scikit-learn's
# own histogram booster does not pass these two either.
PROPORTIONS = "weights count by their proportions, which is not the same as repeating rows"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": PROPORTIONS,
    "check_sample_weight_equivalence_on_sparse_data": PROPORTIONS,
}


@parametrize_with_checks(
    [SparrowClassifier(n_estimators=5, n_jobs=1)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_the_contract_of_scikit_learn_is_kept(estimator, check):
    check(estimator)
