"""`train` checks its arguments, plans memory, sets up the parts and calls the loop, `boost`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparrowboost.learner.boost import boost
from sparrowboost.learner.checkpoint import STRATA, Checkpoint, Owner, Saver, first_trees, identity
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
from sparrowboost.learner.params import AUTO, Params
from sparrowboost.learner.planning import TrainPlan, check_training, plan_training
from sparrowboost.learner.scanner import Scanner
from sparrowboost.learner.soundness import SoundnessMonitor
from sparrowboost.learner.stopping import Adaptive, Paper, SplitFinder
from sparrowboost.learner.validation import make_validation, sets_of
from sparrowboost.learner.warm_up import warm_up, warm_up_numbers
from sparrowboost.model.losses import LOSSES, base_score, get_loss
from sparrowboost.model.model import Model, check_model, load_model
from sparrowboost.model.own_loss import OwnLoss
from sparrowboost.model.predict import BlockBudget
from sparrowboost.model.regression import fit_loss
from sparrowboost.readers.labels import MAX_WEIGHT
from sparrowboost.readers.options import ReadOptions
from sparrowboost.runtime.disk import output_path
from sparrowboost.runtime.errors import DataError, MemoryLimitError
from sparrowboost.runtime.memory import apply_limit, release
from sparrowboost.runtime.progress import Progress, compiling, log, make_progress
from sparrowboost.runtime.random_state import RandomState, check_seed
from sparrowboost.runtime.threads import WorkerPool, check_jobs
from sparrowboost.sampling.sampler import Sampler
from sparrowboost.sampling.schedule import SampleSchedule, Sizes
from sparrowboost.store.dataset import Dataset
from sparrowboost.store.staged import StagedRows
from sparrowboost.store.views import ReweightedRows, class_factors, with_class_weight

FIRST_OF_LABEL = 1_000  # rows of each label that the first stage must have
BASE_BLOCKS = 4  # of each band, from which the constant score for numbers is found
BASE_ROWS = 1 << 18  # of them
LARGE_SAMPLE = 1 << 20  # rows that must fit in samples beside the reading of the source


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
    valid : source, (source, labels), (source, labels, weights), Dataset, or list of them, optional
        Validation data, anything that `ingest` reads; its label column has the same name as the
        training data's. Or a part of the training data set apart by `sparrowboost.views.split`.
        Scored after each tree, by weight if it has any; needed for early stopping. Of several sets
        the last one decides when to stop, as in XGBoost. A list of paths is one set.
    header, format, delimiter, decimal, thousands, date_format : as in `ingest`
        Of files of validation data.
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
    p = Params.make(**params)
    read = ReadOptions(
        header=header,
        format=format,
        delimiter=delimiter,
        decimal=decimal,
        thousands=thousands,
        date_format=date_format,
    )
    if not isinstance(dataset, Dataset):
        raise DataError(f"train takes a Dataset, got {type(dataset).__name__}; call ingest first.")
    init = None if init_model is None else starting_model(init_model, dataset, p)
    if init is not None:
        loss = init.loss if init.own_loss is None else init.own_loss.given
        p = replace(p, loss=loss, n_estimators=init.n_trees + p.n_estimators)
    p = p.for_task(dataset.task)
    sets_of(valid)
    if p.early_stopping_rounds is not None and valid is None:
        raise DataError("early_stopping_rounds needs validation data; pass valid=...")
    for path in (checkpoint, scratch):
        if path is not None:
            output_path(path)  # before any row is read
    n_jobs, seed = check_jobs(n_jobs), check_seed(random_state)
    limit = apply_limit(memory_limit)
    monotone = Monotone.of(p.monotone_constraints, dataset.binning)
    draws = FeatureDraws(
        len(dataset.binning.names),
        bytree=p.colsample_bytree,
        bynode=p.colsample_bynode,
        interactions=Interactions.of(p.interaction_constraints, dataset.binning),
        seed=seed,
    )
    slots = Slots.of(dataset.binning)
    with ExitStack() as stack:
        progress = stack.enter_context(make_progress(verbose))
        with compiling(progress):
            warm_up(some_columns=p.colsample_bytree < 1)
            if dataset.targeted:
                warm_up_numbers(some_columns=p.colsample_bytree < 1)
        release()
        staged = dataset.storage if isinstance(dataset.storage, StagedRows) else None
        division: TrainPlan | None = None
        if staged is not None:
            stack.callback(staged.close)
            may_begin = class_weight is None and checkpoint is None
            dataset, division = begin_reading(staged, p, limit, n_jobs, valid, progress, may_begin)
        factors = class_factors(dataset, class_weight)
        if factors is not None:
            dataset = with_class_weight(dataset, factors)
        model = start_model(dataset, p) if init is None else init
        check_targets(model, dataset)
        check_classes(model, dataset)
        if division is None:
            release()
            division, staged = plan_training(dataset, p, limit, n_jobs, valid), None
        log.debug("how the memory limit is divided:\n%s", division)
        workers, validation = stack.enter_context(WorkerPool(n_jobs)), None
        if valid is not None:
            # Before samples are drawn, reading may use their memory.
            reading = division.budget.parts.get("reading", 0)
            held_back = {"validation": division.valid_bytes, "reading of rows to train on": reading}
            budget = BlockBudget(limit, 1, held_back)
            validation = make_validation(
                valid, model, p.eval_metric, division.valid_bytes, factors, workers, read, budget
            )
        if validation is not None and model.n_trees:
            validation.look(model)  # no new tree may be better than none
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
        scanner = make_scanner(p, slots, workers, whole=sizes.whole)
        sampler = Sampler(
            dataset, model, folder=folder, seed=seed, n_jobs=n_jobs, keep=strata, staged=staged
        )
        stack.enter_context(closing(sampler))
        schedule = SampleSchedule(sampler, sizes, p.theta, rate=p.learning_rate, workers=workers)
        grower = make_grower(p, scanner, slots, model, monotone, draws, exact=sizes.whole)
        task = stack.enter_context(
            progress.task("training", p.n_estimators - model.n_trees, "trees")
        )
        notifier = Notifier(
            [Bar(task), *callbacks, SoundnessMonitor(dataset.task)], scanner, sampler
        )
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


def begin_reading(
    staged: StagedRows,
    params: Params,
    limit: int,
    n_jobs: int,
    valid: Any,
    progress: Progress,
    may_begin: bool,
) -> tuple[Dataset, TrainPlan | None]:
    """Start reading a data set: returns its first stage, and the memory plan meanwhile.

    Where training has to wait, returns all rows and no plan.
    """
    check_training(staged.expected, params, limit, n_jobs, valid)
    division = None
    if may_begin:
        division = plan_while_reading(staged, params, limit, n_jobs, valid)
    staged.start(progress)
    first = staged.stage(0) if division is not None else None
    if first is not None and fewest(first) >= FIRST_OF_LABEL:
        return first, division
    return staged.wait(), None


def starting_model(
    given: Model | str | os.PathLike[str], dataset: Dataset, params: Params
) -> Model:
    """The model to go on from; a DataError if it does not suit the data set or the parameters."""
    model = load_model(given) if isinstance(given, str | os.PathLike) else given
    check_model(model)
    same = model.binning is dataset.binning
    if not same and model.binning.to_json() != dataset.binning.to_json():
        raise DataError(
            "the data set has other bins than init_model; ingest its rows with bins_of=init_model."
        )
    if model.task != dataset.task:
        raise DataError(
            f"init_model is for {model.task}, but the data set is for {dataset.task}; ingest with "
            f"task={model.task!r}."
        )
    if model.loss == OwnLoss.name and not isinstance(params.loss, str):
        return replace(model, own_loss=OwnLoss(params.loss))
    if model.loss == OwnLoss.name and model.own_loss is None:
        raise DataError(
            "init_model was trained with a loss of its own, which its file does not have; pass "
            "that as loss=."
        )
    if params.loss not in (AUTO, model.loss):
        raise DataError(
            f"loss={params.loss!r}, but init_model was trained with {model.loss!r}; pass that, or "
            "leave loss out."
        )
    for name in ("alpha", "power"):
        option, known = getattr(params, name), model.loss_options.get(name)
        asked = params.loss != AUTO or option != getattr(Params, name)
        if asked and known not in (None, option):
            raise DataError(
                f"{name}={option:g}, but init_model was trained with {name}={known:g}; pass that."
            )
    return model


def check_classes(model: Model, dataset: Dataset) -> None:
    """A DataError if a model to go on from has other classes than the data set."""
    if model.classes != dataset.classes:
        raise DataError(
            f"init_model tells {_pair(model.classes)} apart, but the data set has "
            f"{_pair(dataset.classes)}; labels must be the same."
        )


def _pair(classes: tuple[Any, ...]) -> str:
    return " and ".join(map(repr, classes))


def start_model(dataset: Dataset, params: Params) -> Model:
    """The model without trees: the constant score with the lowest loss."""
    of, name = (dataset.binning, dataset.classes), dataset.label_name
    if not dataset.targeted:
        base = base_score(*label_weights(dataset))
        return Model(*of, params.loss, base, label_name=name)
    target, weight = some_targets(dataset)
    own = None if isinstance(params.loss, str) else OwnLoss(params.loss)
    loss = own or fit_loss(params.loss, target, weight, alpha=params.alpha, power=params.power)
    base = loss.base_score(target, weight)
    return Model(*of, loss.name, base, (), name, loss.options, own)


def check_targets(model: Model, dataset: Dataset) -> None:
    """A DataError if the loss does not allow some of the numbers to predict."""
    if model.regression is not None and dataset.target_span is not None:
        model.regression.check(*dataset.target_span, dataset.label_name)


def make_scanner(params: Params, slots: Slots, workers: WorkerPool, *, whole: bool) -> Scanner:
    """The scanner for the loss: of numbers, or of two classes."""
    if params.loss not in LOSSES:
        return NumberScanner(slots, params.max_leaves, workers)
    curved = whole and params.loss == "logistic" and params.stopping == "adaptive"
    return Scanner(slots, params.max_leaves, workers, curved=curved)


def make_grower(
    params: Params,
    scanner: Scanner,
    slots: Slots,
    model: Model,
    monotone: Monotone | None,
    draws: FeatureDraws,
    *,
    exact: bool,
) -> Grower:
    """The grower for `stopping`."""
    if params.stopping == "paper":
        rule = Paper(slots, params.sigma, monotone=monotone)
        return PaperGrower(scanner, rule, params, draws)
    finder = SplitFinder(
        slots, sigma=params.sigma, l2=params.l2, charge=params.category_penalty, monotone=monotone
    )
    loss = model.regression
    values = label_values(get_loss(model.loss)) if loss is None else number_values(loss)
    return AdaptiveGrower(
        scanner, finder, Adaptive(params.rho), values, params, exact=exact, draws=draws
    )


def plan_while_reading(
    staged: StagedRows, params: Params, limit: int, n_jobs: int, valid: Any
) -> TrainPlan | None:
    """The memory plan of a training that begins before all rows are read, or None."""
    if not staged.in_stages:
        return None
    try:
        plan = plan_training(staged.expected, params, limit, n_jobs, valid, staged.reading_bytes)
    except MemoryLimitError:
        return None
    large = plan.sizes.most >= min(LARGE_SAMPLE, staged.n_rows)
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
    p, limit = Params.make(**params).for_task(dataset.task), apply_limit(memory_limit)
    warm_up(some_columns=p.colsample_bytree < 1)
    if dataset.targeted:
        warm_up_numbers(some_columns=p.colsample_bytree < 1)
    release()
    n_jobs = check_jobs(n_jobs)
    if isinstance(dataset.storage, StagedRows):
        division = plan_while_reading(dataset.storage, p, limit, n_jobs, valid)
        if division is not None:
            return division
    return plan_training(dataset, p, limit, n_jobs, valid)


def fewest(dataset: Dataset) -> int:
    """Rows of the rarer label; of numbers, all rows."""
    if dataset.targeted:
        return dataset.n_rows
    return min(dataset.n_positive, dataset.n_rows - dataset.n_positive)


def some_targets(
    dataset: Dataset,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Numbers to predict of up to BASE_ROWS rows, and how much each counts; all, if that many."""
    bands = [dataset.blocks_of(band)[:BASE_BLOCKS] for band in range(dataset.n_bands)]
    chosen = sum(int(dataset.block_rows[blocks].sum()) for blocks in bands)
    step = -(-chosen // BASE_ROWS)
    targets, weights = [], []
    for blocks, n_rows in zip(bands, dataset.band_rows.tolist(), strict=True):
        parts = [dataset.read_block(int(block)).part(slice(0, None, step)) for block in blocks]
        each = n_rows / max(sum(len(part.label) for part in parts), 1)
        for part in parts:
            assert part.target is not None
            u = np.ones(len(part.target), np.float32) if part.weight is None else part.weight
            targets.append(part.target.copy())
            weights.append(np.float32(each) * u)
    weight = np.concatenate(weights)
    if not weight.any():
        raise DataError("the rows have weight 0; there is nothing to learn from.")
    return np.concatenate(targets), weight


def label_weights(dataset: Dataset) -> tuple[float, float]:
    """The total user weight of negatives and of positives; 1 a row without weights."""
    factors = (1.0, 1.0)
    if isinstance(dataset.storage, ReweightedRows):
        factors, dataset = dataset.storage.factors, dataset.storage.base
    sums = np.array([dataset.n_rows - dataset.n_positive, dataset.n_positive], np.float64)
    if dataset.weighted:
        sums[:] = 0
        heaviest = 0.0
        for block in dataset.blocks():
            label, weight = block.label, block.weight
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
