"""Tables of the smaller benchmarks, from results/*.json, for the pages that show them.

Each function is a block of a page, see bench_report.py; it says so where nothing was measured.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
NOT_MEASURED = "Not measured yet."

SETS = {
    "covtype": "covertype, 581,012 x 54",
    "adult": "adult, 48,842 x 14",
    "bank": "bank, 41,188 x 20",
    "magic04": "magic04, 19,020 x 10",
    "flights3m": "flights, 3,000,000 x 7, later dates",
}
INGESTS = {
    "sparrow": "**Sparrow**",
    "xgboost": "XGBoost, `ExtMemQuantileDMatrix`",
    "lightgbm": "LightGBM, pyarrow read + `Dataset.construct()`",
    "read": "pyarrow, `iter_batches` alone",
    "read-bounded": "the same with `pre_buffer=False`",
}
WIDE_SECONDS = {
    "cpu_seconds": "processor",
    "user_seconds": "processor, without the system's part",
    "seconds": "clock",
}
WIDE_READS = {
    "read-table": "`read_table`",
    "read-bounded": "`iter_batches`, `pre_buffer=False`",
    "sparrow": "**ingest**",
}


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _block(name: str, make: Callable[[dict[str, Any]], str], folder: Path) -> str:
    path = folder / f"{name}.json"
    if not path.is_file():
        return NOT_MEASURED
    results = json.loads(path.read_text())
    return f"{make(results)}\n\n`{results['command']}`"


def small(results: dict[str, Any]) -> str:
    rows = []
    for name, title in SETS.items():
        of = results["summary"].get(name)
        if of is None:
            continue
        ours, theirs = of["sparrow"], of["lightgbm"]
        rows.append(
            [title, *(f"{each['auc']:.4f}" for each in (ours, theirs)),
             *(f"{each['seconds']:.2f}" for each in (ours, theirs))]
        )  # fmt: skip
    header = ["", "test AUC, Sparrow", "LightGBM", "seconds, Sparrow", "LightGBM"]
    return markdown(header, rows)


def ingest(results: dict[str, Any]) -> str:
    rows = [
        [title, f"{of['seconds']:.2f}", f"{of['ratio']:.2f}", f"{of['peak_rss_mb']:,.0f} MB"]
        for name, title in INGESTS.items()
        if (of := results["summary"].get(name)) is not None
    ]
    return markdown(["", "seconds", "times those of Sparrow", "peak memory"], rows)


def covertype(results: dict[str, Any]) -> str:
    by = {(of["contestant"], of["fraction"]): of for of in results["summary"]}
    rows = []
    for fraction in sorted({fraction for _, fraction in by}):
        cells = [
            f"{of['accuracy']:.4f} ({of['accuracy_sd']:.4f})"
            if (of := by.get((name, fraction))) is not None
            else ""
            for name in ("sparrow", "xgboost")
        ]
        rows.append([f"{fraction:.0%}", *cells])
    return markdown(["rows in memory", "Sparrow", "XGBoost, a random part"], rows)


def predict(results: dict[str, Any]) -> str:
    rows = [
        [f"{trees}, {source}", *(f"{of[name]:,}" for name in ("sparrow", "lightgbm")),
         f"{of['ratio']:.1f}"]
        for trees, sources in results["rows_per_second"].items()
        for source, of in sources.items()
    ]  # fmt: skip
    return markdown(["rows a second", "Sparrow", "LightGBM", "ratio"], rows)


def scan(results: dict[str, Any]) -> str:
    by = results["ns_per_value"]
    columns = list(next(iter(by.values())))
    rows = [[name, *(f"{of[column]:.2f}" for column in columns)] for name, of in by.items()]
    return markdown(["ns for each value", *columns], rows)


def memory(results: dict[str, Any]) -> str:
    rows = [
        [f"{run['rows'] / 1e6:g} M", run["limit"], step, f"{run[step]['seconds']:.1f}",
         f"{run[step]['peak_rss_mb']:.1f}", f"{run[step]['group_mb']:.1f}"]
        for run in results["runs"]
        for step in ("ingest", "train", "predict")
        if step in run
    ]  # fmt: skip
    return markdown(["rows", "limit", "command", "seconds", "peak RSS, MB", "group, MB"], rows)


def long(results: dict[str, Any]) -> str:
    seen = results["seen"]
    step = max(1, len(seen) // 5)
    rows = [
        [f"{look['trees']:,}", f"{look['seconds']:.0f}", f"{look['samples']:,}",
         f"{look['rss_mb']:.0f}", str(look["files"]), f"{look['scratch_mb']:.0f}"]
        for look in [seen[0], *seen[step - 1 :: step]]
    ]  # fmt: skip
    header = ["trees", "seconds", "samples", "RSS, MB", "open files", "scratch, MB"]
    return markdown(header, rows)


def rooms(results: dict[str, Any]) -> str:
    tasks = results["tasks"]
    names = list(next(iter(tasks.values()))["rooms"])
    rows = [[name, *(f"{of['rooms'][name]:.2f}" for of in tasks.values())] for name in names]
    rows.append(["all", *(f"{of['cpu_seconds']:.2f}" for of in tasks.values())])
    rows.append(["on the clock", *(f"{of['seconds']:.2f}" for of in tasks.values())])
    header = [f"{task}, {of['trees']:,} trees" for task, of in tasks.items()]
    return markdown(["seconds of CPU", *header], rows)


def _spread(of: dict[str, float], digits: str) -> str:
    return f"{of['mean']:{digits}} ({of['min']:{digits}} to {of['max']:{digits}})"


def balanced(results: dict[str, Any]) -> str:
    """For each size of trees: what everyone reached, and Sparrow against it."""
    out = []
    for leaves, of in results["summary"].items():
        rows = []
        for name, own in of["contestants"].items():
            equal, fast = "", ""
            if name != "sparrow":
                equal = _spread(own["sparrow_at_equal_trees"][-1], "+.2f")
                good, all_ = own["sparrow_as_good"], own["sparrow_compared"]
                fast = _spread(own["times_as_fast"], ".1f") if good else "not reached"
                fast += f", {good} of {all_} seeds" if 0 < good < all_ else ""
            bold = f"**{name}**" if name == "sparrow" else name
            seconds = f"{own['seconds']['mean']:.1f}"
            rows.append([bold, _spread(own["final_loss"], ".5f"), seconds, equal, fast])
        header = [
            f"{leaves} leaves, {results['most_trees'][leaves]} trees", "log loss", "seconds",
            "Sparrow's loss at equal trees, %", "Sparrow as good, times as fast",
        ]  # fmt: skip
        out.append(markdown(header, rows))
    return "\n\n".join(out)


def early_stopping(results: dict[str, Any]) -> str:
    rows = [
        [f"{of['table']}, sample size {of['sample_size']}", f"{of['loss']['mean']:.5f}",
         f"{of['trees']['mean']:,.0f}", f"{of['lowest_loss']['mean']:.5f}",
         _spread(of["more_percent"], "+.3f")]
        for of in results["summary"]
    ]  # fmt: skip
    header = ["", "log loss", "trees", "lowest of 1,500 trees", "above it, %"]
    return markdown(header, rows)


def held_text(runs: Sequence[dict[str, Any]]) -> str:
    """How many runs under a hard cap ended in which way."""
    ends = Counter(run["end"] for run in runs)
    tried = len(runs) - ends["refused"]
    return (
        f"{ends['held']} of {tried} held, {ends['killed'] or 'none'} killed, "
        f"{ends['failed'] or 'none'} failed; {ends['refused']} refused before any work."
    )


def caps(results: dict[str, Any]) -> str:
    """For each shape and command, how each limit ended."""
    runs = results["runs"]
    limits = list(dict.fromkeys(run["at"] for run in runs))
    ends = {(run["shape"], run["command"], run["at"]): run for run in runs}
    rows = [
        [shape, command, *(_cap_text(ends.get((shape, command, limit))) for limit in limits)]
        for shape, command in dict.fromkeys((run["shape"], run["command"]) for run in runs)
    ]
    return f"{held_text(runs)}\n\n{markdown(['table', 'command', *limits], rows)}"


def _cap_text(run: dict[str, Any] | None) -> str:
    """The peak of a run, the size that it asked for, or what went wrong."""
    if run is None:
        return ""
    if run["end"] == "refused":
        return f"asks for {run['named']}"
    text = f"{run['peak_rss_mb']} MB" if run["end"] == "held" else f"**{run['end']}**"
    return f"{text} of {run['limit']}" if run["at"] == "smallest" else text


def ingest_wide(results: dict[str, Any]) -> str:
    rows = [
        [f"{table['rows']:,} x {table['columns']:,}, {what}",
         *(f"{table['medians'][name][key]:.2f}" for name in WIDE_READS),
         f"{table['ratios'][key]:.1f}"]
        for table in results["tables"]
        for key, what in WIDE_SECONDS.items()
    ]  # fmt: skip
    header = ["seconds, medians", *WIDE_READS.values(), "ingest / `read_table`"]
    return markdown(header, rows)


def regression(results: dict[str, Any]) -> str:
    """The race of numbers to predict."""
    title = f"{results['rows'] / 1e6:g} M rows, {results['trees']:,} trees of {results['leaves']}"
    return _race(results, title, "lowest half mean squared error")


def classes(results: dict[str, Any]) -> str:
    """The race of more than two classes."""
    of = f"{results['trees']:,} rounds of trees of {results['leaves']}"
    table = f"{results['rows'] / 1e6:g} M rows, " if "rows" in results else ""
    return _race(results, table + of, "lowest log loss")


def classes_quality(results: dict[str, Any]) -> str:
    """Of each contestant, the lowest loss and the last one, and both above Sparrow's."""
    last: dict[str, list[float]] = {}
    for run in results["runs"]:
        last.setdefault(run["contestant"], []).append(run["curve"][-1]["loss"])
    lowest = {name: one["lowest_loss"] for name, one in results["summary"].items()}
    rows = []
    for name in lowest:
        cells = [_span(of[name], ".4f") for of in (lowest, last)]
        above = 100 * (sum(last[name]) / sum(last["sparrow"]) - 1)
        label = f"**{name}**" if name == "sparrow" else name
        rows.append([label, *cells, "" if name == "sparrow" else f"{above:+.1f}"])
    title = f"{results['trees']:,} rounds of trees of {results['leaves']}"
    return markdown([title, "lowest log loss", "last log loss", "above Sparrow's, %"], rows)


def _race(results: dict[str, Any], title: str, measure: str) -> str:
    """Of each contestant: lowest loss, seconds, memory, and Sparrow's speed to that loss."""
    rows = []
    for name, one in results["summary"].items():
        met = [times for times in one["times"] if times is not None]
        times = (
            "" if name == "sparrow" else f"{_span(met, '.1f')}, {len(met)} of {len(one['times'])}"
        )
        loss, seconds = _span(one["lowest_loss"], ".5f"), _span(one["seconds"], ".1f")
        label = f"**{name}**" if name == "sparrow" else name
        rows.append([label, loss, seconds, f"{one['peak_mb']:,.0f}", times])
    header = [title, measure, "seconds, loading included", "peak MB", "times as fast, seeds"]
    return markdown(header, rows)


def categories(results: dict[str, Any]) -> str:
    """Of each contestant: loss, AUC, seconds and memory, as means over seeds, and their range."""
    title = f"{results['rows'] / 1e6:g} M rows, {results['trees']:,} trees"
    rows = [
        [f"**{name}**" if name == "sparrow" else name, _span(of["loss"], ".5f"),
         _span(of["auc"], ".4f"), *(_span(of[key], ".1f") for key in ("seconds", "cpu_seconds")),
         f"{max(of['peak_mb']):,.0f}"]
        for name, of in results["summary"].items()
    ]  # fmt: skip
    oracles = {run["oracle"] for run in results["runs"]} - {None}
    if oracles:
        rows.append(["the true probabilities", _span(sorted(oracles), ".5f"), "", "", "", ""])
    header = [title, "log loss", "AUC", "seconds, loading included", "of processors", "peak MB"]
    return markdown(header, rows)


def _span(values: Sequence[float], form: str) -> str:
    """The mean, and the lowest and the highest."""
    if not values:
        return "not reached"
    mean = sum(values) / len(values)
    return f"{mean:{form}} ({min(values):{form}} to {max(values):{form}})"


def regression_quality(results: dict[str, Any]) -> str:
    """Of each table and loss, the mean test loss of each library."""
    rows = []
    for name, of in results["tables"].items():
        means = [sum(losses) / len(losses) for losses in of["losses"].values()]
        error = "" if of["standard_error"] is None else f" +- {of['standard_error']:.2f}"
        above = f"{of['excess_percent']:+.2f}{error} ({of['best_other']})"
        rows.append([name, *(f"{mean:,.{0 if mean >= 1_000 else 2}f}" for mean in means), above])
    libraries = ["**sparrow**" if key == "sparrow" else key for key in of["losses"]]
    return markdown(["mean test loss", *libraries, "above the best other, %"], rows)


def sparse(results: dict[str, Any]) -> str:
    """Wide and sparse: means of each contestant."""
    oracle = [run["oracle"] for run in results["runs"]]
    rows = [
        [f"**{name}**" if name == "sparrow" else name, f"{of['loss']:.5f}", f"{of['auc']:.4f}",
         f"{of['seconds']:.1f}", f"{of['cpu_seconds']:.1f}", f"{of['peak_mb']:,.0f}"]
        for name, of in results["summary"].items()
    ]  # fmt: skip
    size = f"{results['rows']:,} x {results['columns']:,}, {results['entries']} a row"
    header = [size, "log loss", "AUC", "seconds", "processor", "peak MB"]
    best = f"The loss of the true probabilities is {sum(oracle) / len(oracle):.5f}."
    return f"{markdown(header, rows)}\n\n{best}"


MAKERS = {
    "regression": ("regression", regression),
    "regression-quality": ("regression_quality", regression_quality),
    "classes": ("classes", classes),
    "classes-covertype": ("classes_covertype", classes),
    "classes-covertype-part": ("classes_covertype_part", classes_quality),
    "categories": ("categories", categories),
    "categories-splice": ("categories_splice", categories),
    "sparse": ("sparse", sparse),
    "sparse-fields": ("sparse_fields", sparse),
    "small": ("small", small),
    "ingest": ("ingest", ingest),
    "covertype-figure": ("covertype", covertype),
    "balanced": ("balanced", balanced),
    "early-stopping": ("early_stopping", early_stopping),
    "predict": ("predict", predict),
    "scan": ("scan", scan),
    "rooms": ("rooms", rooms),
    "memory": ("memory", memory),
    "memory-50m": ("memory_50m", memory),
    "long": ("long", long),
    "caps": ("caps", caps),
    "ingest-wide": ("ingest_wide", ingest_wide),
}


def blocks(folder: Path = RESULTS) -> dict[str, str]:
    """By name, what stands between the marks of a page."""
    return {name: _block(file, make, folder) for name, (file, make) in MAKERS.items()}
