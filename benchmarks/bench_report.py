"""Tables and pictures of the bench, from results/bench/*.json into the pages that show them.

    python benchmarks/bench_report.py     -> README.md, docs/, results/bench/*.png

A page has marks, `<!-- begin:bench NAME -->` and `<!-- end:bench NAME -->`; what stands between
them is made here, and a test compares. NAME is a task, "summary", "machine", or a table of one of
the smaller benchmarks (readings.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import curves
import goals
import pictures
import readings
from readings import NOT_MEASURED, markdown
from standings import (
    RESULTS,
    Payload,
    Reached,
    Row,
    Run,
    Target,
    as_good,
    find_target,
    kind,
    loss_cell,
    memory_text,
    read_results,
    rows_of,
    seconds_text,
    sparrows,
)

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    ROOT / name
    for name in ("README.md", "docs/benchmarks.md", "docs/ingest.md", "docs/reliability.md")
)
BLOCK = re.compile(
    r"(<!-- begin:bench (?P<name>[\w-]+) -->\n).*?(<!-- end:bench (?P=name) -->)", re.DOTALL
)

# Columns of the summary: contestants of which the quickest is shown.
GROUPS = {
    "LightGBM": ("lightgbm", "lightgbm-goss", "lightgbm-seq"),
    "XGBoost": ("xgboost",),
    "XGBoost, external memory": ("xgboost-ext", "xgboost-ext-grad"),
    "scikit-learn": ("histgb",),
    "LightGBM on a part": ("lightgbm-sub", "lightgbm-rare"),
}


# -- cells ----------------------------------------------------------------------------------------


def reached_text(reached: Reached | None, base: Reached | None) -> str:
    """``seconds (times those of base)``; > where it was stopped before."""
    if reached is None:
        return ""
    if not reached.reached and not reached.stopped:
        return f"not in {seconds_text(reached.seconds)}"
    more = "" if reached.reached else "> "
    ratio = ""
    if base is not None and base.reached and base is not reached:
        ratio = f" ({more}{reached.seconds / base.seconds:.1f}x)"
    return f"{more}{seconds_text(reached.seconds)}{ratio}"


def name_text(name: str) -> str:
    return f"**{name}**" if name == "sparrow" else name


# -- tables ---------------------------------------------------------------------------------------


def details(payload: Payload, target: Target | None) -> str:
    """All of one task under one memory cap."""
    header = ["", "load", "to the target", "to convergence", "Sparrow as good in", "log loss",
              "exponential loss", "AUC", "average precision", "peak RSS", "group", "trees",
              "rate"]  # fmt: skip
    rows = rows_of(payload, target)
    base = sparrows(rows)
    lines = []
    for row in rows:
        stage, best = row.stage, row.best
        if stage is None or best is None:
            lines.append([name_text(row.contestant), "", row.failed, *[""] * (len(header) - 3)])
            continue
        group = best.get("peak_group_mb")
        lines.append(
            [
                name_text(row.contestant),
                seconds_text(best["load_seconds"]),
                reached_text(row.to_target, base),
                converged_text(best),
                as_good_text(best, payload, target),
                loss_cell(stage["log_loss"]),
                loss_cell(stage["exponential_loss"]),
                f"{stage['auc']:.4f}",
                f"{stage['average_precision']:.4f}",
                f"{best['peak_rss_mb']:,.0f}",
                "" if group is None else f"{group:,.0f}",
                f"{stage['trees']:,}",
                f"{best['rate']:g}",
            ]
        )
    return markdown(header, lines)


def as_good_text(run: Run, payload: Payload, target: Target | None) -> str:
    """When Sparrow is as good as this run got, and how many times as long that took."""
    if run["contestant"].startswith("sparrow"):
        return ""
    own, ours = as_good(run, payload, target.measured if target else "log_loss")
    return "not" if ours is None else f"{seconds_text(ours)} ({own / ours:.1f}x)"


def converged_text(run: Run) -> str:
    """A run that was stopped may have gone on."""
    seconds = seconds_text(curves.converged(run["curve"]))
    return f"> {seconds}" if run["status"] == "stopped" else seconds


def by_memory(payloads: Sequence[Payload], target: Target | None, converged: bool) -> str:
    """The paper's tables: seconds of each contestant (rows) under each memory cap (columns)."""
    tables = [{row.contestant: row for row in rows_of(p, target)} for p in payloads]
    names = list(dict.fromkeys(name for table in tables for name in table))
    header = ["", *(memory_text(payload) for payload in payloads)]
    lines = []
    for name in names:
        cells = []
        for table in tables:
            row = table.get(name)
            if row is None or row.best is None:
                cells.append(row.failed if row else "")
            else:
                cells.append(
                    converged_text(row.best) if converged else reached_text(row.to_target, None)
                )
        lines.append([name_text(name), *cells])
    return markdown(header, lines)


def read_text(payload: Payload, target: Target | None) -> str:
    """How long it takes to read the file and do nothing, and Sparrow's seconds against that."""
    read, base = payload["read_seconds"], sparrows(rows_of(payload, target))
    text = f"A bare read of the file ({payload['file_mb']:,.0f} MB) by pyarrow takes {read:.2f} s"
    if base is None or not base.reached:
        return f"{text}."
    return f"{text}; Sparrow's time to the target is {base.seconds / read:.1f} times that."


def work_lines(payload: Payload) -> list[str]:
    """What Sparrow read and scanned."""
    out = []
    for row in rows_of(payload, None):
        work = row.best.get("work") if row.best else None
        if work:
            out.append(
                f"- {row.contestant}, {memory_text(payload)}: {work['samples']:,} samples drawn, "
                f"{work['rows_read_per_kept']:.2f} rows read for each kept, "
                f"{work['rows_scanned_per_rule']:,} rows scanned for each rule"
            )
    return out


def task_block(name: str, payloads: Sequence[Payload]) -> str:
    """All tables of a task."""
    if not payloads:
        return NOT_MEASURED
    target, first = find_target(payloads), payloads[0]
    about = (
        f"{first['title']}: {first['rows']:,} training rows, {first['test_rows']:,} test rows, "
        f"{first['features']} features, trees of {first['leaves']} leaves, at most "
        f"{first['most_trees']:,} of them. Seconds, loading included; memory in MB."
    )
    parts = [about[0].upper() + about[1:]]
    if target:
        parts.append(f"Target: {target.words()}.")
    if len(payloads) > 1:
        parts.append("Seconds to the target, by memory:")
        parts.append(by_memory(payloads, target, converged=False))
        parts.append("Seconds until the log loss has converged, by memory:")
        parts.append(by_memory(payloads, target, converged=True))
    for payload in payloads:
        commits = ", ".join(dict.fromkeys(str(run["commit"]) for run in payload["runs"]))
        parts.append(f"Memory: {memory_text(payload)} (commit {commits}).")
        parts.append(details(payload, target))
        parts.append(read_text(payload, target))
    work = [line for payload in payloads for line in work_lines(payload)]
    if work:
        parts.append("What Sparrow read:")
        parts.append("\n".join(work))
    picture = f"../benchmarks/results/bench/{name}.png"
    parts.append(f"![test measures against seconds, {name}]({picture})")
    return "\n\n".join(parts)


def summary_block(results: Mapping[str, Sequence[Payload]]) -> str:
    """One line for each task and memory cap, of the quickest in each group."""
    lines = []
    for name, payloads in results.items():
        target = find_target(payloads)
        for payload in payloads:
            rows = rows_of(payload, target)
            base, found = sparrows(rows), [row for row in rows if row.contestant == "sparrow"]
            peers = [row for row in rows if not row.contestant.startswith("sparrow")]
            lines.append(
                [
                    name,
                    memory_text(payload),
                    reached_text(base, None) if base else failed_text(found),
                    *(group_text(rows, kinds, base) for kinds in GROUPS.values()),
                    loss_text(found),
                    loss_text(peers, named=True),
                ]
            )
    if not lines:
        return NOT_MEASURED
    header = ["task", "memory", "**Sparrow**", *GROUPS, "log loss", "lowest of the others"]
    return markdown(header, lines)


def failed_text(rows: Sequence[Row]) -> str:
    return rows[0].failed if rows else ""


def group_text(rows: Sequence[Row], kinds: Sequence[str], base: Reached | None) -> str:
    """The quickest of some contestants; why there is none, if all failed."""
    mine = [row for row in rows if kind(row.contestant) in kinds]
    tried = [row.to_target for row in mine if row.to_target is not None]
    if not tried:
        return failed_text(mine)
    # who got there before who was stopped, and these before who had all trees in vain
    quickest = min(tried, key=lambda r: (not r.reached, not r.stopped, r.seconds))
    return reached_text(quickest, base)


def loss_text(rows: Sequence[Row], named: bool = False) -> str:
    """The lowest log loss of some."""
    stages = [(row.stage["log_loss"], row.contestant) for row in rows if row.stage]
    if not stages:
        return ""
    loss, name = min(stages)
    return f"{loss_cell(loss)}, {name}" if named else loss_cell(loss)


def machine_block(results: Mapping[str, Sequence[Payload]]) -> str:
    """Machines and versions on which results were made."""
    lines = []
    for name, payloads in results.items():
        for payload in payloads:
            machine = payload["machine"]
            versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
            where = (
                f"{machine['cpu']}, {machine['cores']} cores, "
                f"{machine['memory_mb'] / 1000:.1f} GB of memory, {machine['system']}, "
                f"Python {machine['python']}, {versions}"
            )
            lines.append((where, f"{name} ({memory_text(payload)})"))
    if not lines:
        return NOT_MEASURED
    by_machine: dict[str, list[str]] = {}
    for where, what in lines:
        by_machine.setdefault(where, []).append(what)
    return "\n".join(f"- {where}: {', '.join(what)}" for where, what in by_machine.items())


def blocks(
    results: Mapping[str, Sequence[Payload]], smaller: Mapping[str, str] | None = None
) -> dict[str, str]:
    """By name, what stands between the marks of a page."""
    return {
        **{name: task_block(name, payloads) for name, payloads in results.items()},
        **(readings.blocks() if smaller is None else smaller),
        "summary": summary_block(results),
        "machine": machine_block(results),
        "goals": goals.block(results),
    }


def filled(text: str, texts: Mapping[str, str]) -> str:
    """A page with what is measured between its marks."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{texts[match['name']]}\n\n{match[3]}"

    return BLOCK.sub(fill, text)


def main() -> None:
    results = read_results()
    texts = blocks(results)
    for page in PAGES:
        page.write_text(filled(page.read_text(), texts))
    for name, payloads in results.items():
        if payloads:
            pictures.draw(RESULTS / f"{name}.png", payloads, find_target(payloads))
    sys.stdout.write(texts["summary"] + "\n")


if __name__ == "__main__":
    main()
