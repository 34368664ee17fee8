"""Training: read `boost` first, it is the paper's main procedure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from sparrowboost.arriving import Arriving
from sparrowboost.build import RandomState, check_seed
from sparrowboost.checkpoint import STRATA, Checkpoint, Kept, identity
from sparrowboost.errors import DataError, MemoryLimitError
from sparrowboost.events import Callback, Converged, Event, Finished, SampleDrawn, TreeAdded
from sparrowboost.evidence import Slots
from sparrowboost.grower import AdaptiveGrower, Grower, PaperGrower
from sparrowboost.labels import MAX_WEIGHT
from sparrowboost.lookback import LookBack
from sparrowboost.losses import base_score, get_loss
from sparrowboost.memory import give_back_early, resolve_limit
from sparrowboost.model import Model
from sparrowboost.monotone import Monotone
from sparrowboost.params import Params
from sparrowboost.planning import TrainPlan, check_training, plan_training
from sparrowboost.progress import Task, compiling, log, make_progress
from sparrowboost.sampler import Sampler
from sparrowboost.scanner import Scanner
from sparrowboost.soundness import Auditor, label_deviation
from sparrowboost.stopping import Adaptive, Paper, SplitFinder
from sparrowboost.store import Dataset
from sparrowboost.strata import Rows, sum_strata
from sparrowboost.supply import Sizes, Supply
from sparrowboost.threads import Crew, check_jobs
from sparrowboost.views import Reweighted, class_factors, with_class_weight
from sparrowboost.watch import Watch

FIRST_OF_LABEL = 1_000  # rows that must have come of each label, before training begins
LARGE_SAMPLE = 1 << 20  # rows that samples may have, or what reading takes is better used for them
SAVE_SECONDS = 30.0  # between two checkpoints where all rows are in memory


def train(
    dataset: Dataset,
    *,
    valid: Any = None,
    header: bool = True,
    format: str | None = None,
    class_weight: str | Mapping[Any, float] | None = None,
    callbacks: Iterable[Callback] = (),
    memory_limit: int | float | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    scratch: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    random_state: RandomState = 0,
    verbose: int = 1,
    **params: Any,
) -> Model:
    """Train boosted trees on a data set, in bounded memory.

    Parameters
    ----------
    dataset : Dataset
        Made by `ingest`, or a view of one (`sparrowboost.views`).
    valid : source, (source, labels), (source, labels, weights) or Dataset, optional
        Validation data, anything that `ingest` reads; its label column has the same name as the
        training data's. Or a part of the training data set apart by `sparrowboost.views.split`.
        Scored after each tree, by weight if it has any; needed for early stopping.
    header, format : as in `ingest`
        Of files of validation data.
    class_weight : "balanced" or dict of label to float, optional
        Factors of the rows' weights, at most 1e12, of validation rows, too. "balanced" lets both
        labels weigh the same. Probabilities are then those of data in which labels are as frequent
        as that.
    callbacks : callables, optional
        Each gets every event (see `sparrowboost.events`); one that returns True ends training.
    memory_limit : int or str, optional
        Peak memory of the process, such as "512MB". Default: a quarter of what the machine, or the
        cgroup that this process runs in, allows.
    checkpoint : str or path, optional
        Folder in which to keep what is needed to go on after a crash: call `train` again with the
        same arguments, and it goes on from there to the same model. With more `n_estimators` than
        before, a training that had ended goes on, too. See docs/reliability.md.
    scratch : str or path, optional
        Folder for the strata's file, which has no name and is gone whatever ends the process.
        Default: the store's folder. With a checkpoint the file is there, and stays.
    n_jobs : int, optional
        Threads; default (and -1): as many as this process may use. The model does not depend on it.
    random_state : int, Generator, RandomState or None
        The same number gives the same model.
    verbose : int
        0 is silent; 1 shows a progress bar on a terminal, else log lines.
    **params
        See `sparrowboost.params.Params`: n_estimators, learning_rate, max_leaves, max_depth, loss,
        stopping, sample_size, theta, monotone_constraints, early_stopping_rounds, ...

    Returns
    -------
    Model

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> ds = sparrowboost.ingest(X, label=X[:, 0] + X[:, 1] > 0, verbose=0)
    >>> sparrowboost.train(ds, n_estimators=10, max_leaves=4, verbose=0)
    Model(10 trees of up to 4 leaves, 3 features, loss='logistic')
    """
    p = Params.make(**params)
    if not isinstance(dataset, Dataset):
        raise DataError(f"train takes a Dataset, got {type(dataset).__name__}; call ingest first.")
    if p.early_stopping_rounds is not None and valid is None:
        raise DataError("early_stopping_rounds needs validation data; pass valid=...")
    n_jobs, seed = check_jobs(n_jobs), check_seed(random_state)
    limit = resolve_limit(memory_limit)
    if memory_limit is not None:
        give_back_early()
    monotone = Monotone.of(p.monotone_constraints, dataset.binning)
    loss, slots = get_loss(p.loss), Slots.of(dataset.binning)
    with ExitStack() as stack:
        progress = stack.enter_context(make_progress(verbose))
        with compiling(progress):
            warm_up()
        arriving, division = None, None
        if isinstance(dataset, Arriving):
            stack.callback(dataset.close)
            check_training(dataset.expected, p, limit, n_jobs, valid)
            if class_weight is None and checkpoint is None:
                division = plan_while_reading(dataset, p, limit, n_jobs, valid)
            dataset.start(progress)
            first = dataset.stage(0) if division is not None else None
            if first is not None and fewest(first) >= FIRST_OF_LABEL:
                arriving, dataset = dataset, first
            else:
                dataset, division = dataset.wait(), None
        factors = class_factors(dataset, class_weight)
        if factors is not None:
            dataset = with_class_weight(dataset, factors)
        base = base_score(*importance(dataset))
        model = Model(dataset.binning, dataset.classes, p.loss, base, label_name=dataset.label_name)
        if division is None:
            division = plan_training(dataset, p, limit, n_jobs, valid)
        log.debug("how the memory limit is divided:\n%s", division)
        crew, watch = stack.enter_context(Crew(n_jobs)), None
        if valid is not None:
            watch = Watch(
                valid, model, dataset.label_name, p.eval_metric, division.valid_bytes, factors,
                crew, header=header, format=format,
            )  # fmt: skip
        keeper, kept = None, None
        if checkpoint is not None:
            run = identity(dataset, p, seed, validated=valid is not None)
            keeper = stack.enter_context(Checkpoint(checkpoint, run))
            kept = keeper.load()
        sizes = division.sizes
        if kept is not None:
            if kept.result is not None and kept.n_estimators == p.n_estimators:
                return kept.result
            first, most, whole = kept.state["sizes"].tolist()
            sizes = Sizes(first, most, bool(whole))
        curved = sizes.whole and p.loss == "logistic" and p.stopping == "adaptive"
        scanner = Scanner(slots, p.max_leaves, crew, curved=curved)
        folder, name = dataset.path if scratch is None else Path(scratch), None
        if keeper is not None:
            folder, name = keeper.folder, STRATA
        sampler = Sampler(
            dataset,
            loss,
            base,
            folder=folder,
            seed=seed,
            n_jobs=n_jobs,
            keep=name,
            arriving=arriving,
        )
        stack.enter_context(closing(sampler))
        supply = Supply(sampler, sizes, p.theta, rate=p.learning_rate, loss=p.loss, crew=crew)
        grower: Grower
        if p.stopping == "paper":
            grower = PaperGrower(scanner, Paper(slots, p.sigma, monotone=monotone), p)
        else:
            finder = SplitFinder(
                slots, sigma=p.sigma, l2=p.l2, charge=p.category_charge, monotone=monotone
            )
            grower = AdaptiveGrower(scanner, finder, Adaptive(p.rho), loss, p, exact=sizes.whole)
        task = stack.enter_context(progress.task("training", p.n_estimators, "trees"))
        teller = Teller([Bar(task), *callbacks, Auditor()], scanner, sampler)
        saver = Saver(keeper, sizes, scanner, supply, grower, watch, teller)
        if kept is not None:
            model = saver.restore(kept)
        result = boost(model, p, scanner, supply, grower, watch, teller, saver)
        if arriving is not None:
            arriving.wait()  # what is wrong with rows that were not needed is said, too
        saver.finish(result, p.n_estimators)
        return result


def plan_while_reading(
    dataset: Arriving, params: Params, limit: int, n_jobs: int, valid: Any
) -> TrainPlan | None:
    """How to divide the limit if training begins before all rows are read; None if it does not."""
    if not dataset.staged:
        return None
    try:
        plan = plan_training(dataset, params, limit, n_jobs, valid, dataset.reading_bytes)
    except MemoryLimitError:
        return None
    large = plan.sizes.most >= min(LARGE_SAMPLE, dataset.n_rows)
    return plan if large and not plan.sizes.whole else None


def plan(
    dataset: Dataset,
    *,
    valid: Any = None,
    memory_limit: int | float | str | None = None,
    n_jobs: int | None = None,
    **params: Any,
) -> TrainPlan:
    """How `train` would divide the memory limit, as a table; no row of a store is read.

    Takes arguments of `train`. A limit that is too small is refused, as there. Class weights, 4
    bytes for each row of a sample, are not counted.

    Examples
    --------
    >>> import numpy as np, sparrowboost
    >>> ds = sparrowboost.ingest(np.arange(100.0)[:, None], label=np.arange(100) < 30, verbose=0)
    >>> print(str(plan(ds, memory_limit="2GB")).splitlines()[-1])
    all 100 rows in memory
    """
    p, limit = Params.make(**params), resolve_limit(memory_limit)
    if memory_limit is not None:
        give_back_early()
    warm_up()
    n_jobs = check_jobs(n_jobs)
    if isinstance(dataset, Arriving):
        division = plan_while_reading(dataset, p, limit, n_jobs, valid)
        if division is not None:
            return division
    return plan_training(dataset, p, limit, n_jobs, valid)


def boost(
    model: Model,
    params: Params,
    scanner: Scanner,
    supply: Supply,
    grower: Grower,
    watch: Watch | None,
    teller: Teller,
    saver: Saver,
) -> Model:
    """The loop: a tree, then another, on a sample that is renewed when it is worn out."""
    why = "resumed"
    if not saver.resumed:
        scanner.load(supply.first())
        why = "first"
        saver.save(model)
    stop = teller.tell_sample(model, why, supply.look)
    while not stop and model.n_trees < params.n_estimators:
        before = scanner.rows_scanned
        grown = grower.grow(model)
        if grown is None:
            renewed = supply.after_failure(model)
            if renewed is None:
                teller.tell(Converged, model, reason="converged")
                return _best(model, watch, params)
        else:
            model = model.with_tree(grown.tree)
            scores = watch.look(model) if watch is not None else {}
            stop = teller.tell(
                TreeAdded,
                model,
                model=model,
                gamma=grown.gamma,
                gamma_certified=grown.gamma_certified,
                n_rules=len(grown.tree.feature),
                n_proved=grown.n_proved,
                run_rows=grown.run_rows,
                scores=scores,
            )
            if stop:
                break
            if model.n_trees == params.n_estimators:
                break
            saver.save_now_and_then(model)
            if watch is not None and _late(model, watch, supply, params):
                renewed = supply.after_patience(model, watch.best_trees)
                if renewed is None:
                    teller.tell(Finished, model, reason="early_stopping")
                    return _best(model, watch, params)
            else:
                renewed = supply.after_tree(model, grown, scanner.rows_scanned - before)
            if supply.converged:
                teller.tell(Converged, model, reason="converged")
                return _best(model, watch, params)
        if renewed is not None:
            sample, why = renewed
            scanner.load(sample)
            saver.save(model)
            stop = teller.tell_sample(model, why, supply.look)
    teller.tell(Finished, model, reason="callback" if stop else "n_estimators")
    return _best(model, watch, params)


def _late(model: Model, watch: Watch, supply: Supply, params: Params) -> bool:
    """Whether validation got no better for too long, on the same samples."""
    rounds, since = params.early_stopping_rounds, max(watch.best_trees, supply.lost_patience_at)
    return rounds is not None and model.n_trees - since >= rounds


def _best(model: Model, watch: Watch | None, params: Params) -> Model:
    if watch is None or params.early_stopping_rounds is None:
        return model
    return model.first(watch.best_trees)


def fewest(dataset: Dataset) -> int:
    """Rows of the label that has fewer."""
    return min(dataset.n_positive, dataset.n_rows - dataset.n_positive)


def importance(dataset: Dataset) -> tuple[float, float]:
    """The user's weight of all negatives and of all positives; rows count 1 without weights."""
    factors = (1.0, 1.0)
    if isinstance(dataset, Reweighted):
        factors, dataset = dataset.factors, dataset.base
    sums = np.array([dataset.n_rows - dataset.n_positive, dataset.n_positive], np.float64)
    if dataset.weighted:
        sums[:] = 0
        heaviest = 0.0
        for _, label, weight in dataset.blocks():
            assert weight is not None
            sums += np.bincount(label, weight, 2)
            heaviest = max(heaviest, float((weight * np.array(factors)[label]).max(initial=0)))
        if heaviest > MAX_WEIGHT:
            raise DataError(
                f"a row has weight {heaviest:g}, with the weight of its label; it must be at most "
                f"{MAX_WEIGHT:g}."
            )
    sums *= factors
    if not sums.all():
        raise DataError(
            "all rows of one label have weight 0, so that one class is left; there is nothing to "
            "tell apart."
        )
    return float(sums[0]), float(sums[1])


class Saver:
    """Saves where training stands, and goes on from there; does nothing without a checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        sizes: Sizes,
        scanner: Scanner,
        supply: Supply,
        grower: Grower,
        watch: Watch | None,
        teller: Teller,
    ) -> None:
        self._checkpoint, self._sizes = checkpoint, sizes
        self._scanner, self._supply, self._grower = scanner, supply, grower
        self._watch, self._teller = watch, teller
        self._saved = time.perf_counter()
        self.resumed = False

    def save(self, model: Model) -> None:
        """Save when a sample was put in use: then no draw is under way."""
        if self._checkpoint is None:
            return
        watch = self._watch
        best = (0.0, 0) if watch is None else (watch.best_score, watch.best_trees)
        sizes = self._sizes
        state = {
            "sizes": np.array([sizes.first, sizes.most, sizes.whole]),
            "grower": self._grower.memory,
            "scanner": np.array([self._scanner.rows_scanned, self._scanner.cursor]),
            "watch": np.array(best),
            "seconds": np.array(self._teller.seconds),
            **self._supply.state(),
        }
        self._checkpoint.save(model, state)
        self._saved = time.perf_counter()

    def save_now_and_then(self, model: Model) -> None:
        """Save where all rows are in memory, and there is never another sample."""
        if self._sizes.whole and time.perf_counter() - self._saved > SAVE_SECONDS:
            self.save(model)

    def restore(self, kept: Kept) -> Model:
        """Go on from a checkpoint; the model as it was."""
        state = kept.state
        self._scanner.load(self._supply.restore(state))
        self._scanner.rows_scanned, self._scanner.cursor = state["scanner"].tolist()
        self._grower.memory = state["grower"]
        self._teller.seconds = float(state["seconds"])
        if self._watch is not None:
            score, trees = state["watch"].tolist()
            self._watch.best_score, self._watch.best_trees = score, int(trees)
        self.resumed = True
        return kept.model

    def finish(self, result: Model, n_estimators: int) -> None:
        if self._checkpoint is not None:
            self._checkpoint.finish(result, n_estimators)


class Teller:
    """Tells events to whoever listens."""

    def __init__(self, listeners: list[Callback], scanner: Scanner, sampler: Sampler) -> None:
        self._listeners, self._scanner, self._sampler = listeners, scanner, sampler
        self.seconds = 0.0

    @property
    def seconds(self) -> float:
        """Since training began, what was before a crash included."""
        return time.perf_counter() - self._start

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self._start = time.perf_counter() - seconds

    def tell_sample(self, at: Model, /, reason: str, look: LookBack | None) -> bool:
        """Tell that a sample was put in use, and what it says of the trees before it."""
        sample = self._scanner.sample
        strata, deviation = {}, (0.0, 0.0)
        if not sample.whole:
            strata = sum_strata(sample.w / sample.copies, sample.w)
            deviation = label_deviation(sample.copies, sample.label, self._sampler.label_rows)
        return self.tell(
            SampleDrawn, at, reason=reason, strata=strata, look=look, label_deviation=deviation
        )

    def tell(self, kind: Callable[..., Event], at: Model, /, **more: Any) -> bool:
        """Make an event of this kind and tell it; whether somebody wants to stop."""
        counts, sample = self._sampler.counts, self._scanner.sample
        event = kind(
            n_trees=at.n_trees,
            seconds=self.seconds,
            rows_scanned=self._scanner.rows_scanned,
            rows_read=counts.rows_read,
            rows_kept=counts.rows_kept,
            n_samples=counts.n_samples,
            bytes_read=counts.bytes_read,
            sample_rows=sample.n,
            n_eff=sample.n_eff,
            **more,
        )
        log.debug("event=%s", event)
        answers = [listener(event) for listener in self._listeners]
        return any(isinstance(answer, bool | np.bool_) and answer for answer in answers)


class Bar:
    """Moves the progress bar."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, event: Event) -> None:
        if isinstance(event, TreeAdded):
            self._task.advance(1)


def warm_up() -> None:
    """Compile or load all kernels of training, on a few rows."""
    from sparrowboost.kernels import draws, evidence, metrics, partition, scores, splits

    bins, label = np.zeros((2, 1), np.uint8), np.zeros(2, np.uint8)
    w, score, u = np.ones(2, np.float32), np.zeros(2, np.float32), np.ones(2, np.float32)
    order, blocks = np.zeros(2, np.uint16), np.zeros(1, np.int64)
    begin, count = np.zeros((1, 2), np.int32), np.zeros((1, 2), np.int32)
    partition.start_rows(2, order, begin, count, blocks, 2)
    n_bins, offset = np.full(1, 2, np.int64), np.zeros(1, np.uint64)
    category, mask = np.zeros(1, np.uint8), np.zeros(4, np.uint64)
    hist, v = np.zeros((2, 2)), np.zeros(2)
    rows = order, begin, count, blocks, 2
    evidence.add_rows(bins, label, w, *rows, 0, offset, hist, v)
    evidence.add_curved_rows(bins, label, w, u, False, *rows, 0, offset, hist.reshape(-1), v)
    evidence.add_leaf_sums(label, w, u, *rows, 1, np.zeros((1, 3)))
    evidence.add_squares(label, 0, 1, w, *rows, 0, mask, np.zeros(1))
    features, sign = (hist, offset, n_bins, category), np.zeros(1, np.int8)
    work, found = np.empty((2, 256)), np.empty(5)
    splits.best_split(*features, 1.0, 1.0, 1e-9, v[:1], sign, -1.0, 1.0, work, found, mask)
    spare = np.empty(2, np.uint16)
    partition.split_rows(label, 0, 1, order, begin, count, blocks, 2, 0, 1, mask, spare)
    scores.add_values(w, order, begin, count, blocks, 2, 1, score)
    one = np.zeros(1, np.int64)
    scores.apply_trees(bins, np.zeros((1, 8), np.uint64), w, one, one, one, 0, 1, score)
    splits.best_edge(*features, sign, np.ones(2), np.empty(3), mask)
    scores.weigh_logistic(label, u, score, w, v)
    scores.weigh_exponential(label, u, score, np.float32(1), w, v)
    metrics.add_losses(label, score, w, 1.0, np.zeros(3))
    metrics.add_falls(label, score, score, u, 1.0, True, np.zeros(2))
    metrics.count_pairs(score, score)
    draws.pick_rows(w, 1.0, 1.0, 0.5, 0, np.empty(2, np.int64), u, 2)
    draws.weigh_draw(w, u, 1.0)
    draws.find_strata(w, 0, 80, label)
    seen, none, place = np.zeros(2, np.int32), np.empty(0, np.float32), np.zeros(2, np.uint32)
    chunks = Rows.chunks(np.zeros((2, 32), np.uint8), 2, 1, weighted=True)
    given = bins, label, none, score
    draws.put_rows(*given, seen, label, place, 2, *chunks, np.zeros(2, np.int64))
    draws.keep_rows(*given, blocks, 0, bins, label, none, score)
    draws.shuffle_rows(np.uint64(1), bins, label, u, none, score)
