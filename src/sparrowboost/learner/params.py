"""The parameters of training, with the reason for each default; checked once, here."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from sparrowboost.learner.stopping import L2, RHO, SIGMA
from sparrowboost.model.losses import LOSSES
from sparrowboost.model.metrics import METRICS
from sparrowboost.runtime.errors import DataError

STOPPING = ("adaptive", "paper")


@dataclass(frozen=True, kw_only=True)
class Params:
    """How to train.

    Parameters
    ----------
    n_estimators : int
        Most trees. 100, as in XGBoost and LightGBM; training ends before that if it converges.
        More with a smaller learning_rate; with early stopping, more than will be needed.
    learning_rate : float
        Share of each leaf's best step that is taken. 0.1 as in LightGBM. With less, more trees are
        needed, and a sample lasts for more of them.
    max_leaves : int
        Of a tree. 31 as in LightGBM. Fewer where features act one by one, more where many of them
        act together.
    max_depth : int or None
        Of a tree; None: as deep as its leaves allow, since trees grow best leaf first. A limit
        bounds how many features can act together.
    min_child_weight : float
        Least weight on either side of a split, in rows of ordinary weight. 10 keeps small tables,
        and rare labels, from being learned by heart; more does so more strongly.
    l2 : float
        Weight, in rows of ordinary weight, added to each side when splits are compared. Of 1 to 40,
        40 did best over six data sets. Less lets splits through that set few rows apart.
    category_charge : float
        How much of what the choice of a subset of categories gains on noise is taken off its gain.
        1, all of it, keeps columns of many categories that mean little from being learned by heart.
        Less is for those that mean much, with many rows of each and many trees.
    loss : {"logistic", "exponential"}
        logistic: its weights are bounded, so wrong labels cannot take over the sample.
        exponential: the paper's, to compare with it.
    stopping : {"adaptive", "paper"}
        adaptive: certifies the largest edge that the evidence allows, and needs no target. paper: a
        target gamma, shrunk after each failed pass; with loss="exponential" only.
    sample_size : int or "auto"
        Rows in memory. "auto" takes all rows up to 80 million values, if they fit; else it starts
        with 32,768, and samples grow within the memory limit when fresh rows show that trees fit
        the noise of those before. A number fixes it.
    theta : float
        A new sample is drawn when n_eff falls below this share of what the draw started with. 0.5:
        less works longer with rows that hardly count any more, more reads the disk more often.
    rho : float
        adaptive: share of the measured edge that must be certain before a split is taken early.
        On paper the progress for each row read is largest near 1/2; from 0.1 to 0.7 little changes.
    sigma : float
        Chance that some false split of a leaf is ever proved, over all splits of that leaf and
        however many rows are read, if no tree was fitted to them before. It is for each leaf of
        each tree: of a thousand leaves with nothing to learn, one is expected to be split. 0.001
        is the paper's; less asks for more rows.
    gamma_0 : float
        paper: the first target of the advantage over a coin, which is below 0.5. 0.25 is half of
        that; a target that is too high costs passes in which no rule fires.
    monotone_constraints : mapping, sequence or None
        Features whose effect has a sign: {name: 1 | -1 | 0}, or one such number for each feature.
        1: the score never falls when the feature grows and all else stays; -1: it never rises.
        Categories and missing values have no order: the first cannot be constrained, the second
        may have any score.
    early_stopping_rounds : int or None
        End when the validation score has not improved for so many trees; the best model is kept.
        Where samples are drawn, that first brings a fresh, larger one, and training ends if the
        score does not improve on the largest either. None: all trees are trained, and no validation
        rows are needed.
    eval_metric : {"log_loss", "auc", "exponential_loss"}
        The score that early stopping goes by. log_loss is what the default loss minimises; auc
        sorts the validation rows after each tree, which takes time.
    """

    n_estimators: int = 100
    learning_rate: float = 0.1
    max_leaves: int = 31
    max_depth: int | None = None
    min_child_weight: float = 10.0
    l2: float = L2
    category_charge: float = 1.0
    loss: Literal["logistic", "exponential"] = "logistic"
    stopping: Literal["adaptive", "paper"] = "adaptive"
    sample_size: int | Literal["auto"] = "auto"
    theta: float = 0.5
    rho: float = RHO
    sigma: float = SIGMA
    gamma_0: float = 0.25
    monotone_constraints: Mapping[str, int] | Sequence[int] | None = None
    early_stopping_rounds: int | None = None
    eval_metric: Literal["log_loss", "auc", "exponential_loss"] = "log_loss"

    def __post_init__(self) -> None:
        self._whole("n_estimators", 1)
        self._whole("max_leaves", 2)
        self._whole("max_depth", 1, may_be=None)
        self._whole("sample_size", 1, may_be="auto")
        self._whole("early_stopping_rounds", 1, may_be=None)
        self._number("learning_rate", 0, math.inf)
        self._number("min_child_weight", 0, math.inf, low_too=True)
        self._number("l2", 0, math.inf, low_too=True)
        self._number("category_charge", 0, math.inf, low_too=True)
        self._number("theta", 0, 1)
        self._number("rho", 0, 1, low_too=True)
        self._number("sigma", 0, 1)
        self._number("gamma_0", 0, 0.5)
        self._signs("monotone_constraints")
        self._one_of("loss", tuple(LOSSES))
        self._one_of("stopping", STOPPING)
        self._one_of("eval_metric", tuple(METRICS))
        if self.stopping == "paper" and self.loss != "exponential":
            raise DataError(
                "stopping='paper' proves rules of the paper's loss only: pass loss='exponential', "
                "or keep stopping='adaptive'."
            )

    def _whole(self, name: str, least: int, may_be: Any = ()) -> None:
        value = getattr(self, name)
        if isinstance(value, str | None) and value == may_be:
            return
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
            also = f" or {may_be!r}" if may_be != () else ""
            raise DataError(f"{name}={value!r}: give a whole number from {least} on{also}.")

    def _number(self, name: str, low: float, high: float, *, low_too: bool = False) -> None:
        value = getattr(self, name)
        try:
            inside = low < value < high or (low_too and value == low)
        except TypeError:
            inside = False
        if not inside or isinstance(value, bool):
            least = "from" if low_too else "above"
            most = f" and below {high:g}" if high < math.inf else ""
            raise DataError(f"{name}={value!r}: give a number {least} {low:g}{most}.")

    def _signs(self, name: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        listed = isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes)
        if not listed and not (isinstance(value, np.ndarray) and value.ndim == 1):
            raise DataError(
                f"{name}={reprlib.repr(value)}: give a mapping of features to 1, -1 or 0, or a "
                "sequence of these, one for each feature."
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
            raise DataError(f"{name}={value!r} is not known; it is one of {', '.join(choices)}.")

    @classmethod
    def make(cls, **given: Any) -> Params:
        """Parameters by name; an unknown name is an error that lists the known ones."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise DataError(f"unknown parameter {name!r}; known are {', '.join(known)}.")
        return cls(**given)
