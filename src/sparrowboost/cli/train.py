"""`sparrow train`: files or a store become a model."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparrowboost.cli.checks import check_outputs, check_store_options, check_validation, is_store
from sparrowboost.cli.ingest import ingest_to
from sparrowboost.cli.learner import add_learner, learner_params
from sparrowboost.cli.options import (
    FILES,
    add_columns,
    add_command,
    add_data,
    add_jobs,
    add_json,
    add_memory,
    add_quiet,
    add_seed,
    given_data,
    reading,
    verbose,
)
from sparrowboost.cli.show import work

if TYPE_CHECKING:
    from sparrowboost.learner.events import Event, TreeAdded
    from sparrowboost.learner.planning import TrainPlan
    from sparrowboost.model.model import Model
    from sparrowboost.report.history import History
    from sparrowboost.store.dataset import Dataset


def add_to(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        "DATA [DATA ...] [--label COLUMN] -o MODEL [options]",
        run,
        "Train a model on files or on a store, in bounded memory. Ctrl-C saves the trees so far.",
        "sparrow train 'data/*.parquet' --label clicked --memory 1GB -o model.json",
    )
    add_data(parser, f"folder of a store; or {FILES}")
    parser.add_argument(
        "-o", "--output", metavar="MODEL", required=True, help="model file: .json or .json.gz"
    )
    add_columns(parser)
    parser.add_argument(
        "--valid", metavar="FILES", help="files of validation data, with the same label column"
    )
    parser.add_argument(
        "--validation-fraction",
        type=float,
        metavar="F",
        help="share of the rows to set aside as validation data",
    )
    parser.add_argument(
        "--init-model",
        metavar="MODEL",
        help="add trees to this model, whose bins and task are used",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="save progress in this folder; after a crash, run the same command again",
    )
    parser.add_argument(
        "--scratch",
        metavar="DIR",
        help="folder for scratch data (default: the store's; $TMPDIR if that cannot be written)",
    )
    parser.add_argument("--report", metavar="FILE", help="write an HTML report on the training")
    parser.add_argument("--history", metavar="FILE", help="write the training history as JSON")
    add_memory(parser)
    parser.add_argument(
        "--plan", action="store_true", help="show how the memory limit is divided, and stop"
    )
    add_seed(parser)
    add_jobs(parser)
    add_json(parser)
    add_quiet(parser)
    add_learner(parser)


def run(args: argparse.Namespace) -> None:
    from sparrowboost.learner.params import Params
    from sparrowboost.learner.training import plan
    from sparrowboost.store.views import split

    start, params = time.perf_counter(), learner_params(args)
    Params.make(**params)  # report what is wrong before any row is read
    given_data(args)
    check_validation(args)
    check_outputs(args)
    dataset = _open(args)
    rows, valid = dataset, args.valid
    if args.validation_fraction is not None:
        rows, valid = split(dataset, args.validation_fraction, args.seed)
    if args.plan:
        divided = plan(rows, valid=valid, memory_limit=args.memory, n_jobs=args.jobs, **params)
        print(json.dumps(_plan_facts(divided), indent=2) if args.json else divided)
    else:
        _train(args, rows, valid, params, start)


def _open(args: argparse.Namespace) -> Dataset:
    """The store that was given, or a temporary one made from the files that were."""
    from sparrowboost.store.dataset import Dataset

    if args.data and is_store(args.data[0]) and args.sql is None:
        check_store_options(args)
        return Dataset(args.data[0])
    if args.checkpoint is None:
        return ingest_to(None, args, wait=False)
    from sparrowboost.runtime.disk import refuse_link

    store = Path(args.checkpoint) / "store"
    refuse_link(store)
    return ingest_to(store, args, resume=True)


def _train(
    args: argparse.Namespace, rows: Dataset, valid: Any, params: dict[str, Any], start: float
) -> None:
    from sparrowboost.learner.training import train
    from sparrowboost.report.history import History

    last, history = _Last(), History()
    try:
        model = train(
            rows,
            valid=valid,
            **reading(args),
            init_model=args.init_model,
            class_weight="balanced" if args.balanced else None,
            callbacks=[last, history],
            memory_limit=args.memory,
            checkpoint=args.checkpoint,
            scratch=args.scratch,
            n_jobs=args.jobs,
            random_state=args.seed,
            verbose=verbose(args),
            **params,
        )
    except KeyboardInterrupt:
        if last.model is None:
            raise
        last.model.save_model(args.output, storage_options=args.storage_options)
        more = " Run the same command again to continue." if args.checkpoint else ""
        raise KeyboardInterrupt(
            f"the {last.model.n_trees} trees grown so far are in {args.output}.{more}"
        ) from None
    model.save_model(args.output, storage_options=args.storage_options)
    _write_about(args, model, history, rows, params)
    if args.json:
        facts = _facts(args.output, model, last, history, rows)
        print(json.dumps({**facts, "seconds": round(time.perf_counter() - start, 3)}, indent=2))
    elif not args.quiet:
        _show(args.output, model, last.event, history)


class _Last:
    """A callback that remembers the last event and the last tree."""

    def __init__(self) -> None:
        self.tree: TreeAdded | None = None
        self.event: Event | None = None

    @property
    def model(self) -> Model | None:
        return None if self.tree is None else self.tree.model

    def __call__(self, event: Event) -> None:
        self.event = event
        if hasattr(event, "model"):
            self.tree = cast("TreeAdded", event)


def _show(path: str, model: Model, last: Event | None, history: History) -> None:
    print(f"{path}: {model}")
    if last is not None:
        n_rules = sum(len(tree.feature) for tree in model.trees)
        print(f"{last.seconds:.1f} s; {work(last, n_rules)}")
    for metric, score in _scores(model, history).items():
        print(f"validation {metric}: {score:.6g}")


def _scores(model: Model, history: History) -> dict[str, float]:
    """The validation scores of a model; none if its last tree is from before a crash."""
    trees = history.trees["n_trees"]
    if model.n_trees not in trees:
        return {}
    at = trees.index(model.n_trees)
    return {metric: scores[at] for metric, scores in history.scores.items()}


def _facts(
    path: str, model: Model, told: _Last, history: History, dataset: Dataset
) -> dict[str, Any]:
    """A training for JSON: what came of it, and what it took.

    What happened while trees were grown is null if none were, since the checkpoint had them all.
    """
    from sparrowboost.runtime.memory import peak_rss

    last, tree = told.event, told.tree
    kept = _scores(model, history)
    spent = ("n_samples", "rows_read", "bytes_read", "rows_scanned")
    return {
        "path": path,
        "digest": model.digest,
        "trees": model.n_trees,
        "leaves": sum(tree.n_leaves for tree in model.trees),
        "loss": model.loss,
        "rows": dataset.n_rows,
        "positives": None if dataset.targeted else dataset.n_positive,
        "n_features": dataset.n_features,
        "reason": history.reason,
        **{name: getattr(tree, name, None) for name in ("eval_metric", "best_score", "best_trees")},
        "scores": {name: score if math.isfinite(score) else None for name, score in kept.items()},
        **{name: None if last is None else getattr(last, name) for name in spent},
        "training_seconds": None if last is None else round(last.seconds, 3),
        "peak_bytes": peak_rss(),
    }


def _plan_facts(plan: TrainPlan) -> dict[str, Any]:
    """A memory plan for JSON."""
    sizes, budget = plan.sizes, plan.budget
    return {
        "memory_limit": budget.limit,
        "parts": dict(budget.parts),
        "first_sample_rows": sizes.first,
        "largest_sample_rows": sizes.most,
        "all_rows": sizes.whole,
    }


def _write_about(
    args: argparse.Namespace,
    model: Model,
    history: History,
    dataset: Dataset,
    params: dict[str, Any],
) -> None:
    """Write the history and the report, where they were asked for."""
    from sparrowboost.runtime.remote import output_target, write_bytes

    if args.history:
        file = output_target(args.history, args.storage_options)
        write_bytes(file, json.dumps(history.to_json()).encode())
    if args.report:
        from sparrowboost.report.page import write_report

        about = {"model file": args.output, "data": " ".join(args.data) or args.sql}
        write_report(
            args.report,
            model,
            history,
            dataset=dataset,
            params=params,
            about=about,
            storage_options=args.storage_options,
        )
