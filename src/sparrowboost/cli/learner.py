"""The learner's parameters as options of `sparrow train`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from sparrowboost.cli.options import names
from sparrowboost.runtime.errors import DataError

Option = tuple[str, Callable[[str], Any], str]  # name, type, help


def _rows(text: str) -> int | str:
    return text if text == "auto" else int(text)


METAVARS: dict[Callable[[str], Any], str] = {float: "X", str: "NAME"}

# Options that are not given keep the library's defaults.
LEARNER: tuple[Option, ...] = (
    ("n_estimators", int, "maximum number of trees (default: 100)"),
    ("learning_rate", float, "factor by which each leaf's value is multiplied (default: 0.1)"),
    ("max_leaves", int, "maximum number of leaves per tree (default: 31)"),
    ("max_depth", int, "maximum depth of a tree (default: no limit)"),
    (
        "min_child_weight",
        float,
        "minimum weight on either side of a split, in rows of ordinary weight (default: 10.0)",
    ),
    ("l2", float, "weight added to each side when splits are compared (default: 40.0)"),
    (
        "category_penalty",
        float,
        "penalty on splits of categories: this many times the gain expected from noise "
        "(default: 1.0)",
    ),
    (
        "loss",
        str,
        "logistic or exponential; softmax for more than two classes; for numbers squared_error, "
        "absolute_error, huber, quantile, poisson, gamma or tweedie; auto is logistic, softmax or "
        "squared_error (default: auto)",
    ),
    (
        "alpha",
        float,
        "level of --loss quantile, or share of rows that huber does not treat as outliers "
        "(default: 0.9)",
    ),
    ("power", float, "power of the variance of --loss tweedie (default: 1.5)"),
    (
        "base_score",
        float,
        "prediction to start from: for two classes a probability (default: found from the labels)",
    ),
    ("sample_size", _rows, "rows in memory, or auto (default: auto)"),
    (
        "colsample_bytree",
        float,
        "share of the features that each tree may split on (default: 1.0)",
    ),
    (
        "colsample_bynode",
        float,
        "share of the tree's features that each leaf may be split on (default: 1.0)",
    ),
    (
        "early_stopping_rounds",
        int,
        "stop after this many trees without a better validation score (default: never)",
    ),
    (
        "eval_metric",
        str,
        "metric for early stopping: log_loss, auc, average_precision or accuracy; for two classes "
        "also exponential_loss; for numbers rmse, mae, r2 or loss; auto is what the loss minimizes "
        "(default: auto)",
    ),
)
PAPER: tuple[Option, ...] = (
    ("stopping", str, "rule that proves splits: adaptive or paper (default: adaptive)"),
    (
        "sigma",
        float,
        "probability that a false split of a leaf is ever proved (default: 0.001)",
    ),
    (
        "rho",
        float,
        "share of the measured advantage that must be certain to accept a split (default: 0.3)",
    ),
    ("gamma_0", float, "initial target of --stopping paper (default: 0.25)"),
    (
        "theta",
        float,
        "draw a new sample when n_eff falls below this share of its initial value (default: 0.5)",
    ),
)


def add_learner(parser: Any) -> None:
    """The parameters that are tuned, and last those that hardly ever are."""
    learner = parser.add_argument_group("learner", "see docs/parameters.md")
    _add(learner, LEARNER)
    learner.add_argument(  # its old name
        "--category-charge", dest="category_penalty", type=float, help=argparse.SUPPRESS
    )
    learner.add_argument(
        "--monotone",
        metavar="A=1,B=-1",
        action="append",
        help="features with which the score may only rise (1) or only fall (-1)",
    )
    learner.add_argument(
        "--interaction-constraints",
        metavar="A,B;B,C",
        help="sets of features that may interact; or pairwise or no_interactions",
    )
    learner.add_argument(
        "--balanced", action="store_true", help="give all labels the same total weight"
    )
    paper = parser.add_argument_group(
        "the paper's constants (rarely changed)", "see docs/parameters.md"
    )
    _add(paper, PAPER)


def _add(group: Any, options: tuple[Option, ...]) -> None:
    for name, kind, what in options:
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            type=_typed(kind),
            metavar=METAVARS.get(kind, "N"),
            help=what,
        )


def _typed(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            what = "a number" if kind is float else "a whole number"
            also = " or auto" if kind is _rows else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}{also}") from None

    return parse


def learner_params(args: argparse.Namespace) -> dict[str, Any]:
    """The parameters of the learner that were given."""
    params = {name: getattr(args, name) for name, _, _ in LEARNER + PAPER}
    params = {name: value for name, value in params.items() if value is not None}
    pairs = [item.rpartition("=") for item in names(args.monotone) or ()]
    if pairs:
        try:
            params["monotone_constraints"] = {name: int(sign) for name, _, sign in pairs}
        except ValueError:
            raise DataError("--monotone: give features and signs as A=1,B=-1.") from None
    if args.interaction_constraints is not None:
        params["interaction_constraints"] = _sets(args.interaction_constraints)
    return params


def _sets(text: str) -> str | list[list[str]]:
    """Sets of features as they are written in an option, or one of the words instead."""
    if text in ("pairwise", "no_interactions"):
        return text
    sets = [one.split(",") for one in text.split(";")]
    if not all(name for one in sets for name in one):
        raise DataError("--interaction-constraints: give sets of features as 'A,B;B,C'.")
    return sets
