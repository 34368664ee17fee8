"""The command `sparrow`: parse, one library call, print."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sparrowboost import __version__
from sparrowboost.runtime.errors import DataError, SparrowError

if TYPE_CHECKING:
    from sparrowboost.learner.events import Event
    from sparrowboost.model.evaluation import Evaluation
    from sparrowboost.model.model import Model
    from sparrowboost.store.dataset import Dataset

OK, FAILED, INTERRUPTED = 0, 1, 130  # argparse itself exits with 2 for a wrong call
SHOWN_FEATURES = 20
MAX_WIDTH = 10_000  # of a table that is not shown on a terminal
FILES = "files, globs or folders: Parquet, CSV, Arrow, libsvm or .npy"
EXIT_CODES = """exit codes:
  0  done
  1  failed: one line on standard error says what, where and what to do
  2  a wrong call
  130  interrupted; `sparrow train` has then saved the trees that there were"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sparrow`; returns the exit code."""
    args = make_parser().parse_args(argv)
    # Before Arrow is loaded: its own allocators keep much of what was freed.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that it has no letters for
    signal.signal(signal.SIGTERM, _stop)
    try:
        run: Callable[[argparse.Namespace], None] = args.run
        run(args)
        sys.stdout.flush()
        return OK
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (SparrowError, OSError) as error:  # also what nobody foresaw, of a disk or a file
        if args.debug:
            raise
        print(f"sparrow: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt as stop:
        what = str(stop) or "nothing half-made was left."
        print(f"sparrow: interrupted; {what}", file=sys.stderr)
        return INTERRUPTED


def run() -> NoReturn:
    """Run `sparrow` as a program of its own."""
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # too late: all is done and said
    sys.exit(code)


def _stop(number: int, frame: Any) -> None:
    """End as Ctrl-C does: what is half-made is removed, or saved."""
    raise KeyboardInterrupt


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="sparrow",
        description="Boosted trees for tables larger than memory.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sparrow {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (
        _add_demo, _add_ingest, _add_inspect, _add_train, _add_predict, _add_evaluate,
        _add_importance, _add_export,
    ):  # fmt: skip
        add(commands)
    return parser


def _add(commands: Any, name: str, run: Callable[..., None], what: str, example: str) -> Any:
    parser = commands.add_parser(
        name,
        help=what,
        description=what,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    parser.set_defaults(run=run)
    return parser


def _add_quiet(parser: Any) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _add_jobs(parser: Any) -> None:
    parser.add_argument("--jobs", type=int, help="threads (default: all that may be used)")


def _add_memory(parser: Any, default: str = "a quarter of what there is") -> None:
    parser.add_argument("--memory", help=f"memory limit, such as 512MB (default: {default})")


def _verbose(args: argparse.Namespace) -> int:
    return 0 if args.quiet else 1


def _names(given: list[str] | None) -> list[str] | None:
    """Names of an option that may be repeated and may hold several."""
    return None if given is None else [name for part in given for name in part.split(",")]


# -- demo ----------------------------------------------------------------------------------------


def _add_demo(commands: Any) -> None:
    parser = _add(
        commands,
        "demo",
        _demo,
        "Run the main job on human chromosome 21, which comes with the package.",
        "sparrow demo --memory 512MB",
    )
    parser.add_argument("--memory", default="512MB", help="memory limit (default: %(default)s)")
    parser.add_argument("--keep", metavar="DIR", help="keep the data and the store in this folder")
    _add_quiet(parser)


def _demo(args: argparse.Namespace) -> None:
    from sparrowboost.demo import run_demo

    result = run_demo(memory_limit=args.memory, keep=args.keep, verbose=_verbose(args))
    last, data = result.last, result.dataset
    print(_summary(data))
    print(result.model)
    print(
        f"test: {result.n_test:,} rows, {result.n_test_positive:,} positive: "
        f"AUC {result.auc:.4f}, average precision {result.average_precision:.4f}\n"
        f"time: {result.ingest_seconds:.1f} s to ingest {result.source_bytes / 1e6:,.0f} MB of "
        f"Parquet, {result.train_seconds:.1f} s to train, {result.predict_seconds:.1f} s to "
        f"predict (and {result.write_seconds:.1f} s to write the files)\n"
        f"memory: peak {result.peak_bytes / 1e6:,.0f} MB of {args.memory}\n"
        f"{_work(last, result.n_rules)}, where a full pass is {data.n_rows:,}"
    )


def _work(last: Event, n_rules: int) -> str:
    """What training read and scanned, in words."""
    return (
        f"samples: {last.n_samples}, the last of {last.sample_rows:,} rows; "
        f"{last.rows_read / last.rows_kept:.1f} rows read for each kept, "
        f"{last.rows_read / max(n_rules, 1):,.0f} read and "
        f"{last.rows_scanned / max(n_rules, 1):,.0f} scanned for each of {n_rules} rules"
    )


# -- ingest and inspect --------------------------------------------------------------------------


def _add_ingest(commands: Any) -> None:
    parser = _add(
        commands,
        "ingest",
        _ingest,
        "Turn files into a shuffled, binned store, in bounded memory.",
        "sparrow ingest 'data/*.parquet' --label clicked --memory 512MB -o store/",
    )
    parser.add_argument("data", nargs="+", help=FILES)
    parser.add_argument("-o", "--output", required=True, help="the store's folder, to be made")
    _add_reading(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace a store that is there")
    parser.add_argument(
        "--resume", action="store_true", help="go on with an ingest that was killed or interrupted"
    )
    _add_memory(parser)
    parser.add_argument("--seed", type=int, default=0, help="random state (default: %(default)s)")
    _add_jobs(parser)
    _add_quiet(parser)


def _add_reading(parser: Any) -> None:
    """Which columns are what, and how files are to be read."""
    parser.add_argument("--label", help="label column (or a .npy file); libsvm files have theirs")
    parser.add_argument("--weight", help="sample weight column (or a .npy file)")
    parser.add_argument("--positive", help="label to train against all others")
    for option, what in (
        ("--columns", "columns to use as features"),
        ("--exclude", "columns to leave out"),
        ("--categorical", "columns to read as categories"),
    ):
        parser.add_argument(
            option, metavar="A,B", action="append", help=f"{what}, with commas between or repeated"
        )
    _add_format(parser)


def _add_format(parser: Any) -> None:
    parser.add_argument(
        "--no-header", dest="header", action="store_false", help="CSV files name no columns"
    )
    parser.add_argument("--format", help="of files whose suffix does not tell: parquet, csv, ...")


def _ingest(args: argparse.Namespace) -> None:
    dataset = _ingest_to(args.output, args, overwrite=args.overwrite, resume=args.resume)
    if not args.quiet:
        print(_summary(dataset))


def _ingest_to(
    path: str | Path | None,
    args: argparse.Namespace,
    *,
    overwrite: bool = False,
    resume: bool = False,
    wait: bool = True,
) -> Dataset:
    from sparrowboost.store.ingest import ingest

    try:
        return ingest(
            args.data,
            label=args.label,
            path=path,
            weight=args.weight,
            positive=args.positive,
            columns=_names(args.columns),
            exclude=_names(args.exclude),
            categorical=_names(args.categorical),
            memory_limit=args.memory,
            header=args.header,
            format=args.format,
            overwrite=overwrite,
            resume=resume,
            wait=wait,
            n_jobs=args.jobs,
            random_state=args.seed,
            verbose=_verbose(args),
        )
    except KeyboardInterrupt:
        if not resume:
            raise
        raise KeyboardInterrupt(
            "what was done so far is kept; run the same command again to go on."
        ) from None


def _add_inspect(commands: Any) -> None:
    parser = _add(
        commands,
        "inspect",
        _inspect,
        "Show what a store or a model holds: rows, features, bins, trees.",
        "sparrow inspect store/",
    )
    parser.add_argument("path", help="the store's folder, or a model file")
    parser.add_argument("--all", action="store_true", help="show every feature")
    parser.add_argument("--verify", action="store_true", help="check every block's checksum, too")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _inspect(args: argparse.Namespace) -> None:
    from sparrowboost.store.dataset import Dataset

    if Path(args.path).is_file():
        _inspect_model(args)
        return
    dataset = Dataset(args.path, verify=args.verify)
    if args.json:
        print(json.dumps(_facts(dataset), indent=2))
        return
    print(_summary(dataset))
    _show_features(dataset.binning.features, every=args.all)
    if args.verify:
        print(f"all {dataset.n_blocks} blocks are as they were written.")


def _inspect_model(args: argparse.Namespace) -> None:
    from sparrowboost.model.model import load_model

    model = load_model(args.path)
    if args.json:
        facts = {
            "trees": model.n_trees,
            "loss": model.loss,
            "base_score": model.base_score,
            "label": model.label_name,
            "classes": list(model.classes),
            "features": _feature_facts(model.binning.features),
        }
        print(json.dumps(facts, indent=2))
        return
    print(f"{model}\n{_meaning(model)}")
    _show_features(model.binning.features, every=args.all)


def _meaning(data: Dataset | Model) -> str:
    """Which label is the positive one, in words."""
    negative, positive = data.classes
    other = "" if negative is None else f", else {negative!r}"
    return f"{data.label_name} = {positive!r}{other}"


def _facts(dataset: Dataset) -> dict[str, Any]:
    return {
        "path": str(dataset.path),
        "rows": dataset.n_rows,
        "positives": dataset.n_positive,
        "classes": list(dataset.classes),
        "label": dataset.label_name,
        "weighted": dataset.weighted,
        "bytes": dataset.n_bytes,
        "blocks": dataset.n_blocks,
        "features": _feature_facts(dataset.binning.features),
    }


def _feature_facts(features: Any) -> list[dict[str, Any]]:
    return [{"name": f.name, "kind": f.kind, "bins": f.n_values} for f in features]


def _summary(dataset: Dataset) -> str:
    from sparrowboost.runtime.memory import format_size

    return (
        f"{dataset.path}: {dataset.n_rows:,} rows, {dataset.n_features} features, "
        f"{dataset.n_positive:,} positive ({dataset.n_positive / dataset.n_rows:.3%}; "
        f"{_meaning(dataset)}), "
        f"{'weighted, ' if dataset.weighted else ''}"
        f"{format_size(dataset.n_bytes)} in {dataset.n_blocks} blocks"
    )


def _show_features(features: Any, *, every: bool) -> None:
    shown = features if every else features[:SHOWN_FEATURES]
    rows = [(f.name, f.kind, str(f.n_values), f.span()) for f in shown]
    _show_table(("feature", "kind", "bins", "from ... to"), rows, right=(2,))
    if len(shown) < len(features):
        print(f"... and {len(features) - len(shown)} more (--all)")


def _show_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    for k, name in enumerate(header):
        table.add_column(name, justify="right" if k in right else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    # Only a terminal has a width: in a file or a pipe, names are not to be cut.
    Console(width=None if sys.stdout.isatty() else MAX_WIDTH).print(table)


# -- train ---------------------------------------------------------------------------------------

# Parameters of the learner: option, type, words. Those not given keep the library's defaults.
LEARNER: tuple[tuple[str, Callable[[str], Any], str], ...] = (
    ("n_estimators", int, "number of trees, at most (default: 100)"),
    ("learning_rate", float, "share of each leaf's best step that is taken (default: 0.1)"),
    ("max_leaves", int, "leaves of a tree (default: 31)"),
    ("max_depth", int, "splits on the way to a leaf (default: as the leaves allow)"),
    (
        "min_child_weight",
        float,
        "least weight on a side of a split, in ordinary rows (default: 10.0)",
    ),
    ("l2", float, "weight added to each side when splits are compared (default: 40.0)"),
    (
        "category_penalty",
        float,
        "penalty on subsets of categories, relative to their gain on noise (default: 1.0)",
    ),
    ("loss", str, "logistic or exponential (default: logistic)"),
    ("stopping", str, "adaptive or paper (default: adaptive)"),
    (
        "sample_size",
        lambda text: text if text == "auto" else int(text),
        "rows in memory, or auto (default: auto)",
    ),
    ("theta", float, "share of its first n_eff at which a sample is replaced (default: 0.5)"),
    ("rho", float, "share of an edge that must be certain (default: 0.3)"),
    ("sigma", float, "chance that a false split of a leaf is ever proved (default: 0.001)"),
    ("gamma_0", float, "first target of stopping=paper (default: 0.25)"),
    (
        "early_stopping_rounds",
        int,
        "trees without a better validation score, after which to end (default: never)",
    ),
    ("eval_metric", str, "log_loss, auc or exponential_loss (default: log_loss)"),
)


def _add_train(commands: Any) -> None:
    parser = _add(
        commands,
        "train",
        _train,
        "Train a model on files, or on a store, in bounded memory. Ctrl-C saves what there is.",
        "sparrow train 'data/*.parquet' --label clicked --memory 1GB -o model.json",
    )
    parser.add_argument("data", nargs="+", help=f"a store's folder; or {FILES}")
    parser.add_argument("-o", "--output", required=True, help="model file: .json or .json.gz")
    _add_reading(parser)
    parser.add_argument("--valid", help="files of validation data, with the same label column")
    parser.add_argument(
        "--validation-fraction", type=float, metavar="F",
        help="share of the rows to set aside as validation data",
    )  # fmt: skip
    learner = parser.add_argument_group("learner", "see docs/parameters.md")
    for name, kind, what in LEARNER:
        option = "--" + name.replace("_", "-")
        learner.add_argument(option, dest=name, type=_typed(name, kind), metavar="X", help=what)
    learner.add_argument(
        "--monotone", metavar="A=1,B=-1", action="append",
        help="features that the score may only rise with (1) or only fall with (-1)",
    )  # fmt: skip
    learner.add_argument("--balanced", action="store_true", help="let both labels weigh the same")
    parser.add_argument(
        "--checkpoint", metavar="DIR",
        help="keep what is needed to go on after a crash: run the same command again",
    )  # fmt: skip
    parser.add_argument("--report", metavar="FILE", help="write an HTML page about the training")
    parser.add_argument("--history", metavar="FILE", help="write the events of training as JSON")
    _add_memory(parser)
    parser.add_argument(
        "--plan",
        action="store_true",
        help="show how the memory limit is divided, and stop",
    )
    parser.add_argument("--seed", type=int, default=0, help="random state (default: %(default)s)")
    _add_jobs(parser)
    _add_quiet(parser)


def _typed(name: str, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None

    return parse


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def _train(args: argparse.Namespace) -> None:
    from sparrowboost.learner.params import Params
    from sparrowboost.learner.training import plan, train
    from sparrowboost.report.history import History
    from sparrowboost.store.views import split

    params = _params(args)
    Params.make(**params)  # what is wrong is said before any row is read
    _check_validation(args)
    _check_outputs(args)
    dataset = _open_training(args)
    rows, valid = dataset, args.valid
    if args.validation_fraction is not None:
        rows, valid = split(dataset, args.validation_fraction, args.seed)
    if args.plan:
        print(plan(rows, valid=valid, memory_limit=args.memory, n_jobs=args.jobs, **params))
        return
    last, history = _Last(), History()
    try:
        model = train(
            rows,
            valid=valid,
            header=args.header,
            format=args.format,
            class_weight="balanced" if args.balanced else None,
            callbacks=[last, history],
            memory_limit=args.memory,
            checkpoint=args.checkpoint,
            n_jobs=args.jobs,
            random_state=args.seed,
            verbose=_verbose(args),
            **params,
        )
    except KeyboardInterrupt:
        if last.model is None:
            raise
        last.model.save_model(args.output)
        more = " Run the same command again to go on." if args.checkpoint else ""
        raise KeyboardInterrupt(
            f"the {last.model.n_trees} trees that there were are in {args.output}.{more}"
        ) from None
    model.save_model(args.output)
    _write_about(args, model, history, rows, params)
    if not args.quiet:
        print(f"{args.output}: {model}")
        if last.event is not None:
            n_rules = sum(len(tree.feature) for tree in model.trees)
            print(f"{last.event.seconds:.1f} s; {_work(last.event, n_rules)}")
        for metric, scores in history.scores.items():
            print(f"validation {metric}: {scores[model.n_trees - 1]:.6g}")


class _Last:
    """Remembers the model as it was last."""

    def __init__(self) -> None:
        self.model: Model | None = None
        self.event: Event | None = None

    def __call__(self, event: Event) -> None:
        self.event = event
        self.model = getattr(event, "model", self.model)


def _params(args: argparse.Namespace) -> dict[str, Any]:
    """The parameters of the learner that were given."""
    params = {name: getattr(args, name) for name, _, _ in LEARNER}
    params = {name: value for name, value in params.items() if value is not None}
    pairs = [item.rpartition("=") for item in _names(args.monotone) or ()]
    if pairs:
        try:
            params["monotone_constraints"] = {name: int(sign) for name, _, sign in pairs}
        except ValueError:
            raise DataError("--monotone: give features and signs as A=1,B=-1.") from None
    return params


def _check_validation(args: argparse.Namespace) -> None:
    """Say before the work that its validation data could not be found."""
    from sparrowboost.readers.formats import files_of
    from sparrowboost.store.views import share_of

    if args.valid is not None and args.validation_fraction is not None:
        raise DataError("--valid and --validation-fraction exclude each other; give one.")
    if args.valid is not None:
        files_of(args.valid)
    elif args.validation_fraction is not None:
        share_of(args.validation_fraction)
    elif args.early_stopping_rounds is not None:
        raise DataError(
            "--early-stopping-rounds needs validation data; pass --valid or --validation-fraction."
        )


def _check_outputs(args: argparse.Namespace) -> None:
    """Say before the work, not after it, that its result could not be written."""
    from sparrowboost.readers.formats import check_apart

    for path in (args.output, args.report, args.history):
        if not path:
            continue
        file = Path(path).absolute()
        if not os.access(file.parent, os.W_OK):
            raise DataError(
                f"{path}: the folder {file.parent} is not there, or cannot be written to."
            )
        if file.is_dir():
            raise DataError(f"{path}: is a folder; give the name of a file.")
        if not _is_store(args.data[0]):
            check_apart(file, args.data)
        check_apart(file, args.valid)
    if args.report:
        from sparrowboost.report.plots import check_matplotlib

        check_matplotlib()


def _is_store(path: str) -> bool:
    from sparrowboost.store.dataset import MANIFEST

    return (Path(path) / MANIFEST).is_file()


def _open_training(args: argparse.Namespace) -> Dataset:
    """The store that was named, or a temporary one made of the files that were."""
    from sparrowboost.store.dataset import Dataset

    (first, *more) = args.data
    if not _is_store(first):
        if args.checkpoint is None:
            return _ingest_to(None, args, wait=False)
        return _ingest_to(Path(args.checkpoint) / "store", args, resume=True)
    given = [
        option
        for option in ("label", "weight", "positive", "columns", "exclude", "categorical")
        if getattr(args, option) is not None
    ]
    if args.valid is None:  # else they may be meant for its files
        given += ["format"] * (args.format is not None) + ["no-header"] * (not args.header)
    if more or given:
        what = f"--{given[0]}" if given else "other data"
        raise DataError(f"{first} is a store, which has its columns; leave out {what}.")
    return Dataset(first)


def _write_about(
    args: argparse.Namespace,
    model: Model,
    history: Any,
    dataset: Dataset,
    params: dict[str, Any],
) -> None:
    from sparrowboost.runtime.disk import replace_file

    if args.history:
        replace_file(Path(args.history), json.dumps(history.to_json()).encode())
    if args.report:
        from sparrowboost.report.page import write_report

        about = {"model file": args.output, "data": " ".join(args.data)}
        write_report(args.report, model, history, dataset=dataset, params=params, about=about)


# -- what a model is used for --------------------------------------------------------------------


def _add_predict(commands: Any) -> None:
    parser = _add(
        commands,
        "predict",
        _predict,
        "Predict files of any size, and write the result to a file.",
        "sparrow predict model.json 'new/*.parquet' --keep id -o predictions.parquet",
    )
    parser.add_argument("model", help="model file")
    parser.add_argument("data", nargs="+", help=FILES)
    parser.add_argument("-o", "--output", required=True, help="file to write: .parquet or .csv")
    parser.add_argument(
        "--keep", metavar="A,B", action="append", help="columns of the data to write, too"
    )
    parser.add_argument("--score", action="store_true", help="write the log odds, too")
    _add_format(parser)
    _add_memory(parser, "none: some blocks of rows are held")
    _add_jobs(parser)
    _add_quiet(parser)


def _predict(args: argparse.Namespace) -> None:
    from sparrowboost.model.model import load_model
    from sparrowboost.model.predictions import write_predictions

    columns = ["prediction", "probability", *(["score"] if args.score else [])]
    n = write_predictions(
        load_model(args.model),
        args.data,
        args.output,
        columns=columns,
        keep=_names(args.keep) or (),
        header=args.header,
        format=args.format,
        memory_limit=args.memory,
        n_jobs=args.jobs,
        verbose=_verbose(args),
    )
    if not args.quiet:
        print(f"{args.output}: {n:,} rows")


def _add_evaluate(commands: Any) -> None:
    parser = _add(
        commands,
        "evaluate",
        _evaluate,
        "Say how good a model is on labelled files: AUC, log loss, calibration and more.",
        "sparrow evaluate model.json test.parquet --json",
    )
    parser.add_argument("model", help="model file")
    parser.add_argument("data", nargs="+", help=FILES)
    parser.add_argument("--label", help="label column (default: as in the training data)")
    parser.add_argument("--weight", help="sample weight column")
    _add_format(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_memory(parser, "none: some blocks of rows are held")
    _add_quiet(parser)


def _evaluate(args: argparse.Namespace) -> None:
    from sparrowboost.model.evaluation import evaluate
    from sparrowboost.model.model import load_model

    result = evaluate(
        load_model(args.model),
        args.data,
        label=args.label,
        weight=args.weight,
        header=args.header,
        format=args.format,
        memory_limit=args.memory,
        verbose=_verbose(args),
    )
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        _show_evaluation(result)


def _show_evaluation(result: Evaluation) -> None:
    print(f"{result.n_rows:,} rows, {result.n_positive:,} positive")
    for name in (
        "auc", "average_precision", "log_loss", "exponential_loss", "brier", "accuracy",
        "calibration_error",
    ):  # fmt: skip
        print(f"{name.replace('_', ' '):<18} {getattr(result, name):.6f}")
    rows = [
        (
            f"{p.low:.1f} - {p.high:.1f}",
            f"{p.weight:,.0f}",
            f"{p.predicted:.4f}",
            f"{p.observed:.4f}",
        )
        for p in result.calibration
    ]
    _show_table(("probability", "rows", "predicted", "observed"), rows, right=(1, 2, 3))


def _add_importance(commands: Any) -> None:
    parser = _add(
        commands,
        "importance",
        _importance,
        "Show which features a model owes its accuracy to.",
        "sparrow importance model.json --top 10",
    )
    parser.add_argument("model", help="model file")
    parser.add_argument(
        "--kind",
        choices=("gain", "splits"),
        default="gain",
        help="loss removed, or number of splits (default: %(default)s)",
    )
    parser.add_argument(
        "--top",
        type=_count,
        default=SHOWN_FEATURES,
        help="how many to show; 0: all (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, of all features")


def _importance(args: argparse.Namespace) -> None:
    from sparrowboost.model.importance import feature_importances
    from sparrowboost.model.model import load_model

    model = load_model(args.model)
    shares = feature_importances(model, args.kind).tolist()
    ranked = sorted(zip(model.feature_names, shares, strict=True), key=lambda pair: -pair[1])
    if args.json:
        print(json.dumps(dict(ranked), indent=2))
        return
    shown = [pair for pair in ranked if pair[1] > 0][: args.top or None]
    _show_table((f"share of {args.kind}", "feature"),
                [(f"{share:.2%}", name) for name, share in shown], right=(0,))  # fmt: skip
    if len(shown) < len(ranked):
        unused = sum(share == 0 for share in shares)
        print(f"... of {len(ranked)} features, of which {unused} are not used (--top 0, --json)")


def _add_export(commands: Any) -> None:
    parser = _add(
        commands,
        "export",
        _export,
        "Write a model as one of XGBoost's, with the same probabilities.",
        "sparrow export model.json -o model.xgb.json",
    )
    parser.add_argument("model", help="model file")
    parser.add_argument("-o", "--output", required=True, help="file to write: .json")
    parser.add_argument(
        "--data", nargs="+", help="rows by which to weigh the leaves, for SHAP values"
    )
    _add_format(parser)


def _export(args: argparse.Namespace) -> None:
    from sparrowboost.model.model import load_model
    from sparrowboost.readers.formats import check_apart

    model = load_model(args.model)
    check_apart(Path(args.output), [args.model, *(args.data or ())])
    model.to_xgboost(args.output, data=args.data, header=args.header, format=args.format)
    print(f"{args.output}: {model}")
