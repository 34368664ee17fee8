from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from sparrowboost import SparrowClassifier

# These two ask that a row of weight k be k rows. Here only proportions of weights count, of which
# test_classifier.py has the tests; and twice the weight of all rows cannot both change nothing and
# be all rows twice, which is more evidence.
#
# It was tried to take weights as numbers of rows (the unit of a sample: its weight over the sum of
# its importances). Six tables as the check makes them, but without weights of 0, then had the same
# scores to 1e-6, which is not yet the 1e-7 that is asked for: scores are float32. Of six with
# weights of 0, three had other scores: splits of different features that are equally good, to
# 1e-8, part the rows alike that were trained on, but not the others, and rounding decides which is
# taken. Of 500 rows all six had other scores, since bins are quantiles of values and not of
# weights. scikit-learn's own histogram boosters are excused from both checks, too.
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
