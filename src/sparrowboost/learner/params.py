"""The parameters of training, with the reason for each default, and their checks."""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from sparrowboost.learner.interactions import Given as Sets
from sparrowboost.learner.interactions import check_interactions
from sparrowboost.learner.stopping import L2, RHO, SIGMA
from sparrowboost.model.losses import LOSSES
from sparrowboost.model.metrics import METRICS, Given, default_metric, find_metric
from sparrowboost.model.regression import REGRESSION_LOSSES
from sparrowboost.model.softmax import Softmax
from sparrowboost.readers.targets import MAX_TARGET
from sparrowboost.runtime.budget import DEFAULT_LEAVES
from sparrowboost.runtime.errors import DataError

STOPPING = ("adaptive", "paper")
AUTO = "auto"  # the loss, or the metric, that a task has by default

# What labels may be, and the losses for them; the first is the default.
TWO, MANY, NUMBERS = "two classes", "more than two classes", "numbers"
LOSSES_FOR = {
    TWO: tuple(LOSSES),
    MANY: (Softmax.name,),
    NUMBERS: tuple(REGRESSION_LOSSES),
}

RENAMED = {"category_charge": "category_penalty"}  # old names, which work with a warning


def warn_renamed(old: str) -> None:
    """A DeprecationWarning at the line outside this package that uses an old name."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("sparrowboost."):
        level, frame = level + 1, frame.f_back
    text = f"{old} is now called {RENAMED[old]}; the old name will be removed in the next version."
    warnings.warn(text, DeprecationWarning, stacklevel=level)


@dataclass(frozen=True, kw_only=True)
class Params:
    """How to train.

    The parameters to tune come first. Under "Other Parameters" are the paper's constants, which are
    best left alone unless you study the method.

    Parameters
    ----------
    n_estimators : int
        Maximum number of trees; of more than two classes, of trees for each. 100, as in XGBoost and
        LightGBM; training ends earlier if it converges. Use more with a smaller learning_rate; with
        early stopping, more than needed.
    learning_rate : float
        Share of each leaf's optimal step that is taken. 0.1, as in LightGBM. A smaller rate needs
        more trees, and each sample then lasts for more of them.
    max_leaves : int
        Maximum number of leaves of a tree. 31, as in LightGBM. Fewer if features act one by one,
        more if many of them interact.
    max_depth : int or None
        Maximum depth of a tree, which bounds how many features can interact. None: only max_leaves
        bounds a tree, since trees grow best leaf first.
    min_child_weight : float
        Minimum weight on either side of a split, in rows of ordinary weight. 10 keeps small tables
        and rare labels from being overfitted; more does so more strongly.
    l2 : float
        L2 penalty for comparing splits, in rows of ordinary weight added to each side. Of 1 to 40,
        40 did best over six data sets. With less, splits that separate few rows are taken.
    category_penalty : float
        Penalty on splits by subsets of categories, relative to what choosing the best subset gains
        on pure noise. 1, all of it, keeps columns of many meaningless categories from being
        overfitted. Use less if categories mean much and have many rows each, and with many trees.
    loss : str
        For two classes, "logistic" or "exponential". "logistic" has bounded weights, so wrong
        labels cannot dominate the sample; "exponential" is AdaBoost's and the paper's, for
        comparison. For more than two classes, "softmax". For numbers, "squared_error" (the mean),
        "absolute_error" (the median), "huber" (a mean that outliers do not move), "quantile";
        "poisson" (counts), "gamma" (positive numbers) and "tweedie" (positive numbers and zeros).
        "auto": "logistic", "softmax" or "squared_error".
        Or a loss of your own for numbers: a function of targets and scores that returns the first
        and the second derivative by the score, or an object with such a method, `derivatives`, and
        perhaps `losses`.
    alpha : float
        Level of the quantile for loss="quantile". For "huber", the share of rows that are not
        treated as outliers. 0.9, as in scikit-learn.
    power : float
        For loss="tweedie", the power of the mean to which the variance is proportional, between 1
        (counts) and 2 (gamma). 1.5, as in LightGBM and XGBoost.
    base_score : float or None
        The prediction to start from, before the first tree, without offset: for two classes the
        probability of the positive one, as in XGBoost; otherwise a number in the unit of the
        predictions. Not for more than two classes. None: the constant with the lowest loss.
    sample_size : int or "auto"
        Rows in memory. "auto" takes all rows up to 80 million values, if they fit; otherwise it
        starts with 32,768 (131,072 of numbers and of more than two classes), and samples grow
        within the memory limit when fresh rows show that trees overfit them. A number fixes the
        size.
    monotone_constraints : mapping, sequence or None
        Features whose effect has a sign: {name: 1 | -1 | 0}, or one such number per feature. 1: the
        score never falls when the feature grows and all others stay; -1: it never rises. Categories
        have no order and cannot be constrained; missing values may have any score.
    colsample_bytree : float
        Share of the features, rounded up, that a tree may split on; drawn for each tree. 1: all.
        Less helps, and saves time, where many features say much the same; it harms where only few
        features matter.
    colsample_bynode : float
        Share of the tree's features, rounded up, that a leaf may be split on; drawn for each leaf.
        1: all. Less makes trees differ more, as with colsample_bytree, and saves little time.
    interaction_constraints : list, "pairwise", "no_interactions" or None
        Features that may interact, as a list of lists of names or numbers: two may be on the way to
        one leaf if a list has both, three if a list has all three. A feature of no list is used
        alone. "pairwise": any two features. "no_interactions": none. None: no constraints.
    early_stopping_rounds : int or None
        Stop when the validation score has not improved for this many trees, and keep the best
        model. Where samples are drawn, a fresh, larger one is tried first; training stops if the
        score does not improve on the largest sample either. None: train all trees; no validation
        rows are needed.
    eval_metric : str
        The metric for early stopping. For classes, "log_loss", "auc", "average_precision" or
        "accuracy"; for two of them, also "exponential_loss"; for numbers, "rmse", "mae", "r2" or
        "loss", the mean of the training's own. "auto" is what the loss minimises. "auc" and
        "average_precision" sort the validation rows after each tree, which takes time; of more than
        two classes, they are means over the classes, each against the rest. The latter tells more
        where positives are rare. Or a function like those of scikit-learn, of labels, predictions
        and `sample_weight`.

    Other Parameters
    ----------------
    stopping : {"adaptive", "paper"}
        When the rows read so far prove a split. "adaptive" certifies the largest edge that the
        evidence allows, and needs no target. "paper" needs a target gamma, which shrinks after each
        failed pass, and works with loss="exponential" only.
    theta : float
        A new sample is drawn when n_eff falls below this share of its initial value. 0.5: less
        keeps rows that hardly count any more, more reads the disk more often.
    rho : float
        With "adaptive", the share of the measured edge that must be certain before a split is taken
        early. In theory progress per row read is largest near 1/2; from 0.1 to 0.7 little changes.
    sigma : float
        Probability that any false split of a leaf is ever proved, over all its splits and however
        many rows are read, if no tree was fitted to them before. It holds per leaf of each tree: of
        a thousand leaves with nothing to learn, one is expected to be split. 0.001 is the paper's;
        less requires more rows.
    gamma_0 : float
        With "paper", the first target of the advantage over random guessing, below 0.5. 0.25 is
        half of that; a target that is too high costs passes in which no rule fires.
    """

    n_estimators: int = 100
    learning_rate: float = 0.1
    max_leaves: int = DEFAULT_LEAVES
    max_depth: int | None = None
    min_child_weight: float = 10.0
    l2: float = L2
    category_penalty: float = 1.0
    loss: Any = "auto"
    alpha: float = 0.9
    power: float = 1.5
    base_score: float | None = None
    sample_size: int | Literal["auto"] = "auto"
    monotone_constraints: Mapping[str, int] | Sequence[int] | None = None
    colsample_bytree: float = 1.0
    colsample_bynode: float = 1.0
    interaction_constraints: Sets = None
    early_stopping_rounds: int | None = None
    eval_metric: Given = "auto"
    stopping: Literal["adaptive", "paper"] = "adaptive"
    theta: float = 0.5
    rho: float = RHO
    sigma: float = SIGMA
    gamma_0: float = 0.25

    def __post_init__(self) -> None:
        self._whole("n_estimators", 1)
        self._whole("max_leaves", 2)
        self._whole("max_depth", 1, may_be=None)
        self._whole("sample_size", 1, may_be="auto")
        self._whole("early_stopping_rounds", 1, may_be=None)
        self._number("learning_rate", 0, math.inf)
        self._number("min_child_weight", 0, math.inf, low_too=True)
        self._number("l2", 0, math.inf, low_too=True)
        self._number("category_penalty", 0, math.inf, low_too=True)
        self._number("theta", 0, 1)
        self._number("rho", 0, 1, low_too=True)
        self._number("sigma", 0, 1)
        self._number("gamma_0", 0, 0.5)
        self._number("colsample_bytree", 0, 1, high_too=True)
        self._number("colsample_bynode", 0, 1, high_too=True)
        self._signs("monotone_constraints")
        check_interactions(self.interaction_constraints)
        self._number("alpha", 0, 1)
        self._number("power", 1, 2)
        if self.base_score is not None:
            self._number("base_score", -MAX_TARGET, MAX_TARGET)
        if not (callable(self.loss) or hasattr(self.loss, "derivatives")):
            self._one_of("loss", (AUTO, *(loss for of in LOSSES_FOR.values() for loss in of)))
        self._one_of("stopping", STOPPING)
        if callable(self.eval_metric):
            find_metric(self.eval_metric)  # says which way it is better
        else:
            self._one_of("eval_metric", (AUTO, *METRICS))
        if self.stopping == "paper" and self.loss != "exponential":
            raise DataError(
                "stopping='paper' proves rules of the paper's loss only: pass loss='exponential', "
                "or keep stopping='adaptive'."
            )

    def for_task(self, task: str, n_classes: int | None = 2) -> Params:
        """These parameters with the loss and the metric that "auto" means for a task.

        A DataError if they are for another task. `n_classes`: None if it is not known yet.
        """
        kind = NUMBERS if task == "regression" else (MANY if (n_classes or 2) > 2 else TWO)
        loss = self._loss_for(kind, known=n_classes is not None)
        metric = default_metric(loss) if self.eval_metric == AUTO else self.eval_metric
        if isinstance(metric, str) and not METRICS[metric].judges(kind == NUMBERS, kind == MANY):
            known = [m.name for m in METRICS.values() if m.judges(kind == NUMBERS, kind == MANY)]
            raise DataError(
                f"eval_metric={metric!r} does not judge predictions of {kind}; give one of "
                f"{', '.join(known)}."
            )
        if metric == "loss" and not isinstance(loss, str) and not hasattr(loss, "losses"):
            raise DataError(
                "eval_metric='loss' needs the losses of rows, and your loss has derivatives only; "
                "give it a method losses(target, score), or pass another eval_metric."
            )
        self._check_base_score(kind, loss)
        signs = self.monotone_constraints
        values = signs.values() if isinstance(signs, Mapping) else signs
        if kind == MANY and values is not None and any(values):
            raise DataError(
                "monotone_constraints are for two classes or numbers: a probability among more "
                "than two classes may fall while its score rises. Leave them out, or train one "
                "class against the rest with positive=."
            )
        return replace(self, loss=loss, eval_metric=metric)

    def _check_base_score(self, kind: str, loss: Any) -> None:
        """A DataError unless labels of this kind can have the base score."""
        base = self.base_score
        if base is None:
            return
        if kind == MANY:
            raise DataError(
                f"base_score={base!r}: more than two classes start from the shares of their rows; "
                "leave it out, or train one class against the rest with positive=."
            )
        if kind == TWO and not 0 < base < 1:
            raise DataError(
                f"base_score={base!r}: give a probability of the positive label, above 0 and below "
                "1; that of log odds is 1 / (1 + exp(-log_odds))."
            )
        known = REGRESSION_LOSSES.get(loss) if isinstance(loss, str) else None
        if known is not None and known.log_link and base <= 0:
            raise DataError(
                f"base_score={base!r}: loss={loss!r} predicts numbers above 0, and base_score is "
                "such a prediction, not its logarithm; give a number above 0."
            )

    def _loss_for(self, kind: str, *, known: bool) -> Any:
        """The loss for labels of this kind; a DataError if it is for another."""
        loss = LOSSES_FOR[kind][0] if self.loss == AUTO else self.loss
        if not isinstance(loss, str):
            if kind == NUMBERS:
                return loss
            raise DataError(
                "a loss of your own is for regression; ingest with task='regression', and labels "
                "that are numbers."
            )
        either = () if known or kind == NUMBERS else LOSSES_FOR[MANY]
        if loss in (*LOSSES_FOR[kind], *either):
            return loss
        found = kind if known or kind == NUMBERS else "classes"
        other = next(other for other, losses in LOSSES_FOR.items() if loss in losses)
        advice = ""
        if NUMBERS in (kind, other):
            task = "classification" if kind == NUMBERS else "regression"
            advice = f", or ingest with task={task!r}"
        raise DataError(
            f"loss={loss!r} is for {other}, but the labels of this data set are {found}; give one "
            f"of {', '.join((*LOSSES_FOR[kind], *either))}{advice}."
        )

    def _whole(self, name: str, low: int, may_be: Any = ()) -> None:
        value = getattr(self, name)
        if isinstance(value, str | None) and value == may_be:
            return
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < low:
            also = f" or {may_be!r}" if may_be != () else ""
            raise DataError(f"{name}={value!r}: give an integer of at least {low}{also}.")

    def _number(
        self,
        name: str,
        low: float,
        high: float,
        *,
        low_too: bool = False,
        high_too: bool = False,
    ) -> None:
        value = getattr(self, name)
        try:
            at_end = (low_too and value == low) or (high_too and value == high)
            inside = bool(low < value < high or at_end)
        except (TypeError, ValueError):  # of an array
            inside = False
        if not inside or isinstance(value, bool):
            above = "of at least" if low_too else "above"
            below = f" and {'at most' if high_too else 'below'} {high:g}" if high < math.inf else ""
            raise DataError(f"{name}={value!r}: give a number {above} {low:g}{below}.")

    def _signs(self, name: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        listed = isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes)
        if not listed and not (isinstance(value, np.ndarray) and value.ndim == 1):
            raise DataError(
                f"{name}={reprlib.repr(value)}: give a mapping of features to 1, -1 or 0, or a "
                "sequence of these, one per feature."
            )
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for where, sign in pairs:
            whole = isinstance(sign, int | np.integer) and not isinstance(sign, bool)
            if not whole or sign not in (-1, 0, 1):
                raise DataError(
                    f"{name}={reprlib.repr(value)}: {where!r} has {sign!r}; give 1, -1 or 0."
                )

    def _one_of(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise DataError(f"{name}={value!r} is unknown; give one of {', '.join(choices)}.")

    def __getattr__(self, name: str) -> Any:
        if name not in RENAMED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warn_renamed(name)
        return getattr(self, RENAMED[name])

    @classmethod
    def make(cls, **given: Any) -> Params:
        """Parameters by name; an unknown name is an error that lists the known ones."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known and name not in RENAMED:
                raise DataError(
                    f"unknown parameter {name!r}; the parameters are {', '.join(known)}."
                )
        return cls(**given)


_init = Params.__init__


@functools.wraps(_init)
def _init_renamed(self: Params, **given: Any) -> None:
    for old, new in RENAMED.items():
        if old in given:
            if new in given:
                raise DataError(f"{old} is the old name of {new}; pass only {new}.")
            warn_renamed(old)
            given[new] = given.pop(old)
    _init(self, **given)


Params.__init__ = _init_renamed  # type: ignore[method-assign]
