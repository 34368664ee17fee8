"""The training loop: read this first. It is the paper's main procedure."""

from __future__ import annotations

from sparrowboost.learner.checkpoint import Saver
from sparrowboost.learner.events import Converged, Finished, TreeAdded
from sparrowboost.learner.grower import Grower
from sparrowboost.learner.notifier import Notifier
from sparrowboost.learner.params import Params
from sparrowboost.learner.scanner import Scanner
from sparrowboost.learner.validation import Validation, ValidationSets
from sparrowboost.model.model import Model
from sparrowboost.sampling.schedule import SampleSchedule


def boost(
    model: Model,
    params: Params,
    scanner: Scanner,
    schedule: SampleSchedule,
    grower: Grower,
    validation: Validation | ValidationSets | None,
    notifier: Notifier,
    saver: Saver,
) -> Model:
    """The loop: a tree, then another, on a sample that is renewed when it is worn out."""
    if saver.resumed:
        why, sample = "resumed", schedule.sample
    else:
        why, sample = "first", schedule.first()
    scanner.load(sample, scanner.cursor)  # restored, if resumed
    if not saver.resumed:
        saver.save(model)
    stop = notifier.tell_sample(model, why, schedule.look)
    while not stop and model.n_trees < params.n_estimators:
        before = scanner.rows_scanned
        grown = grower.grow(model)
        if grown is None:
            renewed = schedule.after_failure(model)
            if renewed is None:
                notifier.tell(Converged, model, reason="converged")
                return _best(model, validation, params)
        else:
            model = model.with_tree(*grown.trees)
            scores = validation.look(model) if validation is not None else {}
            stop = notifier.tell(
                TreeAdded,
                model,
                model=model,
                gamma=grown.gamma,
                gamma_certified=grown.gamma_certified,
                n_rules=grown.n_rules,
                n_proved=grown.n_proved,
                run_rows=grown.run_rows,
                scores=scores,
                other_scores=() if validation is None else validation.other_scores,
                **(validation.best if validation is not None else {}),
            )
            if stop:
                break
            if model.n_trees == params.n_estimators:
                break
            saver.save_now_and_then(model)
            if validation is not None and _late(model, validation, schedule, params):
                renewed = schedule.after_patience(model, validation.best_trees)
                if renewed is None:
                    notifier.tell(Finished, model, reason="early_stopping")
                    return _best(model, validation, params)
            else:
                renewed = schedule.after_tree(model, grown, scanner.rows_scanned - before)
            if schedule.converged:
                notifier.tell(Converged, model, reason="converged")
                return _best(model, validation, params)
        if renewed is not None:
            sample, why = renewed
            scanner.load(sample)
            saver.save(model)
            stop = notifier.tell_sample(model, why, schedule.look)
    notifier.tell(Finished, model, reason="callback" if stop else "n_estimators")
    return _best(model, validation, params)


def _late(
    model: Model,
    validation: Validation | ValidationSets,
    schedule: SampleSchedule,
    params: Params,
) -> bool:
    """Whether validation has not improved for too long, without a new sample meanwhile."""
    rounds = params.early_stopping_rounds
    since = max(validation.best_trees, schedule.lost_patience_at)
    return rounds is not None and model.n_trees - since >= rounds


def _best(model: Model, validation: Validation | ValidationSets | None, params: Params) -> Model:
    if validation is None or params.early_stopping_rounds is None:
        return model
    return model.first(validation.best_trees)
