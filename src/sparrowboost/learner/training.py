"""`train` checks its arguments, plans memory, sets up the parts and calls the loop, `boost`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from typing import Any

from sparrowboost.learner.boost import boost
from sparrowboost.learner.checkpoint import STRATA, Checkpoint, Owner, Saver, first_trees, identity
from sparrowboost.learner.class_grower import ClassGrower
from sparrowboost.learner.events import Callback
from sparrowboost.learner.evidence import Slots
from sparrowboost.learner.features import FeatureDraws
from sparrowboost.learner.grower import AdaptiveGrower, Grower
from sparrowboost.learner.interactions import Interactions
from sparrowboost.learner.leaf_values import label_values, number_values
from sparrowboost.learner.monotone import Monotone
from sparrowboost.learner.notifier import Bar, Notifier
from sparrowboost.learner.number_scanner import NumberScanner
from sparrowboost.learner.paper_grower import PaperGrower
from sparrowboost.learner.params import Params
from sparrowboost.learner.planning import TrainPlan, plan_training
from sparrowboost.learner.scanner import Scanner
from sparrowboost.learner.soundness import SoundnessMonitor
from sparrowboost.learner.starting import (
    begin_reading,
    check_base_score,
    check_classes,
    check_targets,
    plan_before_reading,
    plan_while_reading,
    start_model,
    starting_model,
)
from sparrowboost.learner.stopping import Adaptive, Paper, SplitFinder
from sparrowboost.learner.validation import (
    Validation,
    ValidationSets,
    make_validation,
    sets_of,
)
from sparrowboost.learner.warm_up import warm_up, warm_up_classes, warm_up_numbers, warm_up_packed
from sparrowboost.model.losses import LOSSES, get_loss
from sparrowboost.model.model import Model
from sparrowboost.model.predict import BlockBudget
from sparrowboost.readers.options import ReadOptions
from sparrowboost.runtime.disk import output_path
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import apply_limit, release
from sparrowboost.runtime.progress import compiling, log, make_progress
from sparrowboost.runtime.random_state import RandomState, check_seed
from sparrowboost.runtime.threads import WorkerPool, check_jobs
from sparrowboost.sampling.sampler import Sampler
from sparrowboost.sampling.schedule import SampleSchedule, Sizes
from sparrowboost.store.binning import Binning
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.packing import Packing
from sparrowboost.store.staged import StagedRows
from sparrowboost.store.views import class_factors, with_class_weight


def train(
    dataset: Dataset,
    *,
    valid: Any = None,
    header: bool = True,
    format: str | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    thousands: str | None = None,
    date_format: str | Sequence[str] | None = None,
    table_version: int | str | None = None,
    as_of: str | datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
    class_weight: str | Mapping[Any, float] | None = None,
    callbacks: Iterable[Callback] = (),
    memory_limit: int | float | str | None = None,
    init_model: Model | str | os.PathLike[str] | None = None,
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
    valid : source, (source, labels[, weights[, offsets]]), Dataset, or list of them, optional
        Validation data, anything that `ingest` reads; its label column has the same name as the
        training data's, and so has that of offsets. Or a part of the training data set apart by
        `sparrowboost.views.split`. Scored after each tree, by weight if it has any; needed for
        early stopping. Of several sets the last one decides when to stop, as in XGBoost. A list of
        paths is one set.
    header, format, delimiter, decimal, thousands, date_format, storage_options : as in `ingest`
        Of files of validation data; the last of them also of a remote `init_model`.
    table_version, as_of : as in `ingest`
        Of Delta and Iceberg tables by path, also in validation data.
    class_weight : "balanced" or dict of label to float, optional
        Factors of the rows' weights, at most 1e12, of validation rows, too. "balanced" lets both
        labels weigh the same. Probabilities are then those of data in which labels are as frequent
        as that.
    callbacks : callables, optional
        Each gets every event (see `sparrowboost.events`); one that returns True ends training.
    memory_limit : int or str, optional
        Peak memory of the process, such as "512MB". Default: a quarter of what the machine, or the
        cgroup that this process runs in, allows; if that is less than 1 GB, up to 1 GB or 80 %.
    init_model : Model or path, optional
        Go on from this model: `n_estimators` trees are added to its own. The data set must have its
        bins: it is the one that the model was trained on, or was made by ``ingest(...,
        bins_of=model)``. The loss is that of the model.
    checkpoint : str or path, optional
        Folder in which to keep what is needed to go on after a crash: call `train` again with the
        same arguments, and it goes on from there to the same model. With more `n_estimators` than
        before, a training that had ended goes on, too; with fewer, the first trees are returned.
        See docs/reliability.md.
    scratch : str or path, optional
        Folder for the strata's file, which has no name and is gone whatever ends the process.
        Default: the store's folder, or that for temporary files (TMPDIR) if the store's cannot be
        written. With a checkpoint the file is there, and stays.
    n_jobs : int, optional
        Threads; default (and -1): as many as this process may use. The model does not depend on it.
    random_state : int, Generator, RandomState or None
        The same number gives the same model.
    verbose : int
        0 is silent; 1 shows a progress bar on a terminal, else log lines.
    **params
        See `sparrowboost.Params`: n_estimators, learning_rate, max_leaves, max_depth, loss,
        stopping, sample_size, theta, colsample_bytree, monotone_constraints, ...

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
    given = Params.make(**params)
    read = ReadOptions(
        header=header,
        format=format,
        delimiter=delimiter,
        decimal=decimal,
        thousands=thousands,
        date_format=date_format,
        table_version=table_version,
        as_of=as_of,
        storage_options=storage_options,
    )
    if not isinstance(dataset, Dataset):
        raise DataError(f"train takes a Dataset, got {type(dataset).__name__}; call ingest first.")
    init = (
        None if init_model is None else starting_model(init_model, dataset, given, storage_options)
    )
    p, many = settled(given, dataset, init, valid), dataset.n_classes > 2
    for path in (checkpoint, scratch):
        if path is not None:
            output_path(path)  # before any row is read
    n_jobs, seed = check_jobs(n_jobs), check_seed(random_state)
    limit = apply_limit(memory_limit)
    grow = GrowerMaker(p, dataset.binning, seed)
    with ExitStack() as stack:
        progress = stack.enter_context(make_progress(verbose))
        with compiling(progress):
            load_kernels(p, dataset)
        release()
        staged = dataset.storage if isinstance(dataset.storage, StagedRows) else None
        division: TrainPlan | None = None
        if staged is not None:
            stack.callback(staged.close)
            may_begin = class_weight is None and checkpoint is None
            dataset, division = begin_reading(staged, p, limit, n_jobs, valid, progress, may_begin)
        if many != (dataset.n_classes > 2):  # other than a sample of the labels said
            p = settled(given, dataset, init, valid)
            grow = GrowerMaker(p, dataset.binning, seed)
        factors = class_factors(dataset, class_weight)
        if factors is not None:
            dataset = with_class_weight(dataset, factors)
        model = start_model(dataset, p) if init is None else init
        check_targets(model, dataset)
        check_classes(model, dataset)
        check_base_score(model, p)
        if division is None:
            release()
            division, staged = plan_training(dataset, p, limit, n_jobs, valid), None
        log.debug("how the memory limit is divided:\n%s", division)
        workers, validation = stack.enter_context(WorkerPool(n_jobs)), None
        if valid is not None:
            validation = read_validation(valid, model, p, division, factors, workers, read)
        sizes, saved, found = division.sizes, None, None
        folder, strata = None if scratch is None else output_path(scratch), None
        if checkpoint is not None:
            run = identity(dataset, p, seed, validated=valid is not None, init=init)
            saved = stack.enter_context(Checkpoint(checkpoint, run))
            folder, strata, found = saved.folder, STRATA, saved.load()
        if saved is not None and found is not None:
            found = found.with_loss(model.own_loss)
            if found.result is not None and found.n_estimators == p.n_estimators:
                return found.result
            if found.model.n_trees > p.n_estimators:
                return first_trees(found, p, saved.folder)
            sizes = Sizes.restored(found.state)
        scanner = make_scanner(p, grow.slots, workers, dataset.packing, whole=sizes.whole)
        sampler = Sampler(
            dataset, model, folder=folder, seed=seed, n_jobs=n_jobs, keep=strata, staged=staged
        )
        stack.enter_context(closing(sampler))
        schedule = SampleSchedule(sampler, sizes, p.theta, rate=p.learning_rate, workers=workers)
        grower = grow.make(scanner, model, exact=sizes.whole)
        new_trees = p.n_estimators - model.n_trees
        bar = Bar(stack.enter_context(progress.task("training", new_trees, "trees")))
        listeners: list[Callback] = [bar, *callbacks, SoundnessMonitor(dataset.n_classes)]
        notifier = Notifier(listeners, scanner, sampler)
        owners: list[Owner] = [schedule, scanner, grower, notifier]
        if validation is not None:
            owners.append(validation)
        saver = Saver(saved, owners, whole=sizes.whole)
        if found is not None:
            model = saver.restore(found)
        result = boost(model, p, scanner, schedule, grower, validation, notifier, saver)
        if staged is not None:
            check_targets(model, staged.wait())  # of rows that were not needed, too
        saver.finish(result, p.n_estimators)
        return result


def settled(params: Params, dataset: Dataset, init: Model | None, valid: Any) -> Params:
    """The parameters for this data set, and for the model to go on from."""
    if init is not None:
        loss = init.loss if init.own_loss is None else init.own_loss.given
        params = replace(params, loss=loss, n_estimators=init.n_trees + params.n_estimators)
    sets_of(valid)
    if params.early_stopping_rounds is not None and valid is None:
        raise DataError("early_stopping_rounds needs validation data; pass valid=...")
    return params.for_task(dataset.task, dataset.n_classes)


def load_kernels(params: Params, dataset: Dataset) -> None:
    """Load or compile the kernels of a training."""
    some_columns = params.colsample_bytree < 1
    warm_up(some_columns=some_columns)
    if dataset.targeted:
        warm_up_numbers(some_columns=some_columns)
    if dataset.n_classes > 2:
        warm_up_classes()
    if dataset.packing is not None:
        warm_up_packed()


def read_validation(
    valid: Any,
    model: Model,
    params: Params,
    division: TrainPlan,
    factors: tuple[float, ...] | None,
    workers: WorkerPool,
    read: ReadOptions,
) -> Validation | ValidationSets:
    """Read the validation rows; before samples are drawn, that may use their memory."""
    reading = division.budget.parts.get("reading", 0)
    held_back = {"validation": division.valid_bytes, "reading of rows to train on": reading}
    budget = BlockBudget(division.budget.limit, 1, held_back)
    rows = division.valid_bytes, factors, workers, read, budget
    validation = make_validation(valid, model, params.eval_metric, *rows)
    if model.n_trees:
        validation.look(model)  # no new tree may be better than none
    return validation


def make_scanner(
    params: Params, slots: Slots, workers: WorkerPool, packing: Packing | None, *, whole: bool
) -> Scanner:
    """The scanner for the loss: of numbers, or of two classes."""
    if params.loss not in LOSSES:  # of several classes, too: each has gradients
        return NumberScanner(slots, params.max_leaves, workers, packing=packing)
    curved = whole and params.loss == "logistic" and params.stopping == "adaptive"
    return Scanner(slots, params.max_leaves, workers, curved=curved, packing=packing)


class GrowerMaker:
    """What growers need that is known before any row is read: checked, and made when it is."""

    def __init__(self, params: Params, binning: Binning, seed: int) -> None:
        self._params, self.slots = params, Slots.of(binning)
        self._monotone = Monotone.of(params.monotone_constraints, binning)
        self._draws = FeatureDraws(
            len(binning.names),
            bytree=params.colsample_bytree,
            bynode=params.colsample_bynode,
            interactions=Interactions.of(params.interaction_constraints, binning),
            seed=seed,
        )

    def make(self, scanner: Scanner, model: Model, *, exact: bool) -> Grower:
        """The grower for `stopping`."""
        p, monotone, draws = self._params, self._monotone, self._draws
        if p.stopping == "paper":
            return PaperGrower(scanner, Paper(self.slots, p.sigma, monotone=monotone), p, draws)
        classes, loss = model.softmax, model.regression
        n_trees = 1 if classes is None else classes.n_classes
        # Sigma bounds the false proofs of a round: each of its trees has an equal share.
        finder = SplitFinder(
            self.slots,
            sigma=p.sigma / n_trees,
            l2=p.l2,
            charge=p.category_penalty,
            monotone=monotone,
        )
        slopes = classes or loss
        values = label_values(get_loss(model.loss)) if slopes is None else number_values(slopes)
        how = finder, Adaptive(p.rho), values, p
        growers = [
            AdaptiveGrower(scanner, *how, exact=exact, draws=draws, n_classes=n_trees)
            for _ in range(n_trees)
        ]
        if not isinstance(scanner, NumberScanner) or classes is None:
            return growers[0]
        return ClassGrower(scanner, growers)


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
    p, limit = (
        Params.make(**params).for_task(dataset.task, dataset.n_classes),
        apply_limit(memory_limit),
    )
    load_kernels(p, dataset)
    release()
    n_jobs = check_jobs(n_jobs)
    if isinstance(dataset.storage, StagedRows):
        division = plan_while_reading(dataset.storage, p, limit, n_jobs, valid)
        if division is not None:
            return division
        if dataset.storage.known:
            return plan_before_reading(dataset.storage, p, limit, n_jobs, valid)
    return plan_training(dataset, p, limit, n_jobs, valid)
