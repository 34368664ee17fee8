"""The events of a training, which callbacks, progress and reports receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparrowboost.model.model import Model
    from sparrowboost.sampling.lookback import LookBack


@dataclass(frozen=True, kw_only=True)
class Event:
    """The state of a training.

    Attributes
    ----------
    n_trees : int
        Of more than two classes, of each.
    seconds : float
        Since training began.
    rows_scanned : int
        Rows added to evidence so far, with repetition.
    rows_read, rows_kept, n_samples : int
        Rows read from disk for all samples so far, rows kept, and the samples.
    bytes_read : int
    sample_rows : int
        Rows of the sample in use.
    n_eff : float
        Its effective size.
    """

    n_trees: int
    seconds: float
    rows_scanned: int
    rows_read: int
    rows_kept: int
    n_samples: int
    bytes_read: int
    sample_rows: int
    n_eff: float


@dataclass(frozen=True, kw_only=True)
class SampleDrawn(Event):
    """A sample was put in use.

    Attributes
    ----------
    reason : str
    strata : mapping of int to float
        How the weight of all data is spread over the strata: of k, the sum of w of the rows whose
        weight is in [2^k, 2^(k+1)), as the sample estimates it, under the model for which it was
        drawn. Empty where the sample is all rows: then there are no strata.
    look : LookBack or None
        How good the last trees are on these rows, which are fresh to them: the fall of the loss,
        and the advantage of their first splits (`sampling/lookback.py`). None where there is
        nothing to look back at: for the first sample, a resumed one, one drawn while no tree was
        added, and where all rows are in memory.
    label_deviation : (float, float)
        Of negatives and of positives (of numbers, of their lower and their upper bands; of more
        than two classes, of the frequent and the rare ones): how many
        rows the draw stands for, less how many there are, in standard deviations of a draw of
        independent rows; 0 where the sample is all rows. Far above 0 the draw is off. Below, many
        rows may weigh so little that they are hardly ever drawn: then the few that are tell too
        little of how many there are.
    """

    reason: str
    strata: Mapping[int, float]
    look: LookBack | None
    label_deviation: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TreeAdded(Event):
    """A tree was added to the model.

    Attributes
    ----------
    model : Model
        The model so far.
    gamma, gamma_certified : float
        Advantage over a coin of the tree's first split: as measured, and what is certain of it. Of
        numbers, how far the gradients on each of its sides agree (docs/learner.md).
    n_rules, n_proved : int
        Splits of the tree, and how many of them the stopping rule proved; of more than two classes,
        of the trees of all, as gamma is their mean.
    run_rows : int
        Rows of the sample on which the tree was grown.
    scores : mapping of str to float
        Of the validation data, if any: log_loss and exponential_loss (of more than two classes,
        accuracy), and `eval_metric`; of numbers, the loss, mae, rmse and r2. Of several validation
        sets, those of the last one, which decides.
    other_scores : tuple of mappings of str to float
        Those of the other sets, in their order.
    eval_metric : str or None
        The score that decides which number of trees is best; None without validation data.
    best_score : float or None
        The best one so far, also before a crash.
    best_trees : int or None
        The number of trees that had it.
    """

    model: Model = field(repr=False)
    gamma: float
    gamma_certified: float
    n_rules: int
    n_proved: int
    run_rows: int
    scores: Mapping[str, float]
    other_scores: tuple[Mapping[str, float], ...] = ()
    eval_metric: str | None = None
    best_score: float | None = None
    best_trees: int | None = None


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """Training ended: trees enough, converged, or stopped early."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Converged(Finished):
    """Not even the largest sample shows a tree, or trees on such samples did harm to fresh rows."""


Callback = Callable[[Event], object]  # one that returns True stops training
