"""The bench: what pages say is what was measured, and how a measurement is read."""

from __future__ import annotations

import json
import re

import pytest

import bench_report
import curves
import goals
import pictures
import readings
import standings
from bench_report import PAGES
from standings import Reached, Row, Target

SMALLER = (
    "covertype-figure",
    "balanced",
    "early-stopping",
    "predict",
    "scan",
    "rooms",
    "regression",
    "regression-quality",
    "classes",
    "classes-covertype",
    "classes-covertype-part",
    "categories",
    "categories-splice",
    "sparse",
    "sparse-fields",
)
OF_OTHERS = {"balanced-31", "balanced-noisy"}  # tasks of bench_balanced.py, in its two tables


def stage(seconds, loss, trees=1, auc=0.5):
    of = {"seconds": seconds, "trees": trees, "auc": auc, "average_precision": 0.1}
    return {**of, "log_loss": loss, "exponential_loss": 2 * loss}


def run(contestant, losses, status="ok", rate=0.1, **more):
    """One stage a second, after a second of loading; the AUC is 1 - loss."""
    curve = [stage(n + 1.0, loss, n, 1 - loss) for n, loss in enumerate(losses, 1)]
    return {
        "contestant": contestant,
        "rate": rate,
        "commit": "abc1234",
        "status": status,
        "seconds": curve[-1]["seconds"],
        "load_seconds": 1.0,
        "peak_rss_mb": 1234.5,
        "peak_group_mb": 999.0,
        "trees": len(losses),
        "curve": curve,
        **more,
    }


def failed(contestant, status, **more):
    return {"contestant": contestant, "rate": 0.1, "commit": "abc1234", "status": status, **more}


def payload(runs, memory="1GB", target_auc=None, **more):
    return {
        "task": "table10m",
        "title": "a made table",
        "memory": memory,
        "rows": 1000,
        "test_rows": 500,
        "features": 20,
        "leaves": 4,
        "most_trees": 3,
        "target_auc": target_auc,
        "cap_enforced": True,
        "file_mb": 1234.5,
        "read_seconds": 0.5,
        "machine": {
            "cpu": "a processor",
            "cores": 2,
            "memory_mb": 24000,
            "system": "Linux",
            "python": "3.11",
            "versions": {"lightgbm": "4.5", "xgboost": None},
        },
        "runs": runs,
        **more,
    }


WORK = {"samples": 3, "rows_read_per_kept": 1.25, "rows_scanned_per_rule": 4567}
CAPPED = payload(
    [
        run("sparrow", [0.5, 0.3, 0.2], work=WORK),
        failed("lightgbm", "oom"),
        failed("xgboost", "error", error="XGBoostError: no"),
        run("xgboost-ext", [0.6, 0.55], status="stopped"),
        run("lightgbm-sub-1m", [0.5, 0.4, 0.35]),
        failed("histgb", "stopped", seconds=240.0),
    ]
)
FREE = payload([run("sparrow", [0.5, 0.2]), run("lightgbm", [0.4, 0.3])], memory="none")
TARGET = Target("log_loss", 0.3003, "the lowest of lightgbm and 0.1 %")


@pytest.fixture
def folder(tmp_path):
    for each in (FREE, CAPPED):
        standings.write_payload(tmp_path / f"table10m-{each['memory']}.json", each)
    return tmp_path


def test_results_are_read_as_they_were_written(folder):
    path = folder / "table10m-1GB.json"
    assert standings.read_payload(path) == CAPPED
    assert len(json.loads(path.read_text())["runs"]) == len(CAPPED["runs"])
    empty = payload([])
    standings.write_payload(path, empty)
    assert standings.read_payload(path) == empty


# -- pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_numbers_of_a_page_are_those_of_the_results(page):
    text = page.read_text()
    assert bench_report.BLOCK.search(text)
    now = bench_report.filled(text, bench_report.blocks(standings.read_results()))
    assert text == now, "run: python benchmarks/bench_report.py"


def test_every_task_that_was_measured_has_its_place_in_the_docs():
    marks = {match["name"] for match in bench_report.BLOCK.finditer(PAGES[1].read_text())}
    others = {"summary", "machine", "goals", *SMALLER}
    assert marks == {*standings.TASKS, *others} - OF_OTHERS


def test_pictures_of_what_was_measured_are_there():
    for name, payloads in standings.read_results().items():
        assert not payloads or (standings.RESULTS / f"{name}.png").is_file(), name


def test_a_number_changed_by_hand_is_found(folder):
    texts = bench_report.blocks(standings.read_results(folder))
    marks = "".join(
        f"# {name}\n<!-- begin:bench {name} -->\nold\n<!-- end:bench {name} -->\n"
        for name in ("table10m", "summary", "machine")
    )
    page = bench_report.filled(marks, texts)
    assert "old" not in page and bench_report.filled(page, texts) == page
    numbers = list(re.finditer(r"\d+\.\d+", page))
    assert len(numbers) > 50
    for number in numbers:
        digit = "1" if number[0][-1] != "1" else "2"
        changed = page[: number.end() - 1] + digit + page[number.end() :]
        assert bench_report.filled(changed, texts) != changed


def test_text_outside_the_marks_stays():
    text = "a 1.5\n<!-- begin:bench x -->\n<!-- end:bench x -->\nb 2.5\n"
    filled = bench_report.filled(text, {"x": "c"})
    assert filled == "a 1.5\n<!-- begin:bench x -->\n\nc\n\n<!-- end:bench x -->\nb 2.5\n"


def test_what_was_not_measured_says_so(tmp_path):
    texts = bench_report.blocks(standings.read_results(tmp_path), readings.blocks(tmp_path))
    assert set(texts.values()) == {bench_report.NOT_MEASURED}


def test_tables_of_the_smaller_benchmarks_have_the_numbers_of_their_files(tmp_path):
    of = {"auc": 0.92864, "seconds": 0.6931}
    small = {"adult": {"sparrow": of, "lightgbm": {"auc": 0.9283, "seconds": 0.3015}}}
    results = {
        "small": {"command": "small.py", "summary": small},
        "covertype": {
            "command": "covertype.py",
            "summary": [
                {"contestant": name, "fraction": 0.1, "accuracy": 0.91, "accuracy_sd": 0.0012}
                for name in ("sparrow", "xgboost")
            ],
        },
        "memory_50m": {
            "command": "memory.py",
            "runs": [
                {
                    "rows": 50_000_000,
                    "limit": "512MB",
                    "ingest": {"seconds": 3.2, "peak_rss_mb": 276.84, "group_mb": 146.0},
                }
            ],
        },
        "sparse": {
            "command": "sparse.py",
            "rows": 1_000_000,
            "columns": 100_000,
            "entries": 100,
            "runs": [{"oracle": 0.5}, {"oracle": 0.52}],
            "summary": {
                "sparrow": {
                    "loss": 0.61,
                    "auc": 0.7,
                    "seconds": 61.2,
                    "cpu_seconds": 98.4,
                    "peak_mb": 990.0,
                },
            },
        },
        "caps": {
            "command": "caps.py",
            "runs": [
                {**run, "shape": "wide", "command": "train", "limit": "212 MB"}
                for run in (
                    {"at": "smallest", "end": "held", "peak_rss_mb": 201},
                    {"at": "512MB", "end": "refused", "named": "601 MB"},
                    {"at": "1GB", "end": "killed"},
                )
            ],
        },
    }
    of = {"loss": [0.3, 0.31], "auc": [0.75, 0.77], "seconds": [4.0, 6.0], "cpu_seconds": [8, 9]}
    results["categories"] = {
        "command": "categories.py",
        "rows": 3_000_000,
        "trees": 300,
        "summary": {"sparrow": {**of, "peak_mb": [800.0, 900.0]}},
        "runs": [{"oracle": 0.28}, {"oracle": 0.29}],
    }
    for name, result in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    texts = readings.blocks(tmp_path)
    assert "| adult, 48,842 x 14 | 0.9286 | 0.9283 | 0.69 | 0.30 |" in texts["small"]
    assert "| 10% | 0.9100 (0.0012) | 0.9100 (0.0012) |" in texts["covertype-figure"]
    assert "| 1,000,000 x 100,000, 100 a row | log loss |" in texts["sparse"]
    assert "| **sparrow** | 0.61000 | 0.7000 | 61.2 | 98.4 | 990 |" in texts["sparse"]
    assert "probabilities is 0.51000." in texts["sparse"]
    assert "| 50 M | 512MB | ingest | 3.2 | 276.8 | 146.0 |" in texts["memory-50m"]
    assert "| wide | train | 201 MB of 212 MB | asks for 601 MB | **killed** |" in texts["caps"]
    assert "1 of 2 held, 1 killed, none failed; 1 refused" in texts["caps"]
    assert texts["small"].endswith("`small.py`")
    assert (
        "| **sparrow** | 0.30500 (0.30000 to 0.31000) | 0.7600 (0.7500 to 0.7700) "
        "| 5.0 (4.0 to 6.0) | 8.5 (8.0 to 9.0) | 900 |"
    ) in texts["categories"]
    assert "| the true probabilities | 0.28500 (0.28000 to 0.29000) |" in texts["categories"]
    assert texts["scan"] == readings.NOT_MEASURED


# -- targets and rows ------------------------------------------------------------------------------


def test_target_is_the_lowest_loss_of_the_first_reference_under_any_cap():
    target = standings.find_target([CAPPED, FREE])
    assert target.value == pytest.approx(0.3 * 1.001) and "lightgbm " in target.source
    # without it, of the next in the list that has a curve
    alone = standings.find_target([CAPPED])
    assert alone.value == pytest.approx(0.35 * 1.001) and "lightgbm-sub-1m" in alone.source
    assert standings.find_target([payload([failed("lightgbm", "oom")])]) is None


def test_target_of_a_task_that_names_an_auc_is_that():
    assert standings.find_target([payload([], target_auc=0.95)]) == Target("auc", 0.95, "")


def test_seconds_to_a_target_are_on_the_line_between_two_stages():
    line = [stage(1, 0.5, auc=0.6), stage(2, 0.4, auc=0.8), stage(3, 0.3, auc=0.7)]
    assert curves.seconds_to(line, "log_loss", 0.35) == pytest.approx(2.5)
    assert curves.seconds_to(line, "auc", 0.7) == pytest.approx(1.5)
    assert curves.seconds_to(line, "log_loss", 0.9) == 1
    assert curves.seconds_to(line, "log_loss", 0.2) is None


def test_a_run_has_converged_within_a_thousandth_of_its_lowest_loss():
    line = [stage(1, 0.5), stage(2, 0.2002), stage(3, 0.2), stage(4, 0.3)]
    assert curves.converged(line) == pytest.approx(2)
    assert curves.converged([stage(7, 0.5)]) == 7


def test_quickest_rate_counts_at_the_target_and_lowest_loss_elsewhere():
    fast, good = run("sparrow", [0.3, 0.29]), run("sparrow", [0.5, 0.4, 0.2], rate=0.3)
    (row,) = standings.rows_of(payload([fast, good]), Target("log_loss", 0.3, ""))
    assert row.to_target == Reached(2.0)
    assert row.best["rate"] == 0.3 and row.stage["log_loss"] == 0.2


def test_rows_come_in_the_order_of_contestants():
    names = [row.contestant for row in standings.rows_of(CAPPED, TARGET)]
    assert names == ["sparrow", "xgboost", "xgboost-ext", "lightgbm", "lightgbm-sub-1m", "histgb"]


def test_why_there_is_no_curve():
    rows = {row.contestant: row for row in standings.rows_of(CAPPED, TARGET)}
    assert rows["lightgbm"].failed == "OOM"
    assert rows["xgboost"].failed == "XGBoostError: no"
    assert rows["histgb"].failed == "> 240"
    assert rows["sparrow"].failed == "" and rows["lightgbm"].stage is None


def test_where_no_rate_gets_there_the_least_is_claimed():
    target = Target("log_loss", 0.1, "")
    ended, stopped = run("xgboost", [0.5, 0.4]), run("xgboost", [0.5, 0.4, 0.3], status="stopped")
    both = standings.to_target([ended, stopped], target)
    assert both == Reached(4.0, reached=False, stopped=True)
    assert standings.to_target([ended], target) == Reached(3.0, reached=False)


# -- cells -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reached", "text"),
    [
        (None, ""),
        (Reached(12.34), "12.3 (6.2x)"),
        (Reached(1234.5), "1,234 (617.2x)"),
        (Reached(300.0, reached=False, stopped=True), "> 300 (> 150.0x)"),
        (Reached(45.0, reached=False), "not in 45.0"),
    ],
)
def test_cell_of_seconds(reached, text):
    assert bench_report.reached_text(reached, Reached(2.0)) == text


def test_losses_have_five_digits_that_count():
    assert standings.loss_cell(0.2021349) == "0.20213"
    assert standings.loss_cell(0.0044932) == "0.0044932"


def test_no_ratio_to_what_was_not_reached():
    assert bench_report.reached_text(Reached(5.0), Reached(2.0, reached=False)) == "5.0"
    assert bench_report.reached_text(Reached(5.0), None) == "5.0"


def test_details_show_failures_bounds_and_measures():
    lines = bench_report.details(CAPPED, TARGET).splitlines()
    cells = {line.split(" | ")[0].strip("| "): line for line in lines}
    assert "| OOM |" in cells["lightgbm"]
    assert "| > 240 |" in cells["histgb"]
    bounds = "| > 3.0 (> 1.0x) | > 3.0 | 2.0 (1.5x) | 0.55000 | 1.1000 | 0.4500 |"
    assert bounds in cells["xgboost-ext"]
    assert "| not in 4.0 | 4.0 | 2.7 (1.5x) | 0.35000 |" in cells["lightgbm-sub-1m"]
    assert (
        "| 3.0 | 4.0 |  | 0.20000 | 0.40000 | 0.8000 | 0.1000 | 1,234 | 999 | 3 | 0.1 |"
        in (cells["**sparrow**"])
    )


def test_a_peer_that_is_better_than_sparrow_ever_is_is_not_met():
    better = payload([run("sparrow", [0.5, 0.4]), run("lightgbm", [0.45, 0.3])])
    assert standings.as_good(better["runs"][1], better, "log_loss")[1] is None
    assert "| not | 0.30000 |" in bench_report.details(better, TARGET)
    own, ours = standings.as_good(better["runs"][1], better, "auc")
    assert own == pytest.approx(3, abs=0.01) and ours is None  # the AUC is 1 - loss
    later = payload([run("sparrow", [0.5, 0.2]), run("lightgbm", [0.45, 0.3])])
    own, ours = standings.as_good(later["runs"][1], later, "auc")
    assert own > ours == pytest.approx(2 + (0.5 - 0.3007) / 0.3, abs=0.01)


def test_tables_by_memory_have_a_column_for_each_cap(folder):
    results = standings.read_results(folder)["table10m"]
    assert [each["memory"] for each in results] == ["1GB", "none"]
    text = bench_report.by_memory(results, TARGET, converged=False)
    assert text.splitlines()[0] == "|  | 1GB | no cap |"
    assert "| **sparrow** | 3.0 | 2.7 |" in text
    assert "| lightgbm | OOM | 3.0 |" in text
    assert "| xgboost-ext | > 3.0 |  |" in text


def test_sparrow_is_compared_with_a_bare_read():
    text = "A bare read of the file (1,234 MB) by pyarrow takes 0.50 s"
    ratio = "Sparrow's time to the target is 6.0 times that."
    assert bench_report.read_text(CAPPED, TARGET) == f"{text}; {ratio}"
    assert bench_report.read_text(payload([failed("sparrow", "oom")]), TARGET) == f"{text}."


def test_a_cap_that_was_not_enforced_is_told():
    assert standings.memory_text({**CAPPED, "cap_enforced": False}) == "1GB (not enforced)"
    assert standings.memory_text({**FREE, "cap_enforced": False}) == "no cap"


def test_summary_takes_the_quickest_of_a_group(folder):
    text = bench_report.summary_block(standings.read_results(folder))
    capped, free = text.splitlines()[2:]
    assert capped == (
        "| table10m | 1GB | 3.0 | OOM | XGBoostError: no | > 3.0 (> 1.0x) | > 240 | not in 4.0 "
        "| 0.20000 | 0.35000, lightgbm-sub-1m |"
    )
    assert (
        free == "| table10m | no cap | 2.7 | 3.0 (1.1x) |  |  |  |  | 0.20000 | 0.30000, lightgbm |"
    )


def test_who_was_stopped_is_shown_before_who_grew_all_trees_in_vain():
    rows = [
        Row(contestant="lightgbm-sub-1m", to_target=Reached(3.0, reached=False)),
        Row(contestant="lightgbm-rare-1m", to_target=Reached(9.0, reached=False, stopped=True)),
    ]
    kinds = ("lightgbm-sub", "lightgbm-rare")
    assert bench_report.group_text(rows, kinds, Reached(3.0)) == "> 9.0 (> 3.0x)"
    rows.append(Row(contestant="lightgbm-sub-3m", to_target=Reached(30.0)))
    assert bench_report.group_text(rows, kinds, Reached(3.0)) == "30.0 (10.0x)"


def test_pictures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    pictures.draw(tmp_path / "p.png", [CAPPED, FREE], TARGET)
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_every_contestant_has_a_style_and_is_of_a_group():
    groups = {kind for kinds in bench_report.GROUPS.values() for kind in kinds}
    assert set(pictures.STYLES) == set(standings.CONTESTANTS)
    assert groups == {name for name in standings.CONTESTANTS if not name.startswith("sparrow")}


# -- goals -----------------------------------------------------------------------------------------


def test_goals_are_held_against_the_target_or_where_a_peer_is_at_its_best(monkeypatch):
    part, stopped = ("lightgbm-sub",), ("xgboost-ext",)
    found = [goals.Goal("table10m", "1GB", part, 1.4), goals.Goal("table10m", "1GB", stopped, 2)]
    found.append(goals.Goal("table10m", "2GB", part, 1))  # not measured
    monkeypatch.setattr(goals, "GOALS", tuple(found))
    reference = run("lightgbm", [0.5, 0.4])
    results = {"table10m": [payload([*CAPPED["runs"][2:], CAPPED["runs"][0], reference])]}
    lines = goals.speed_table(results).splitlines()[2:]
    assert len(lines) == 2
    # the target is 0.4004: Sparrow is there at 2.5 s, the part at 3 s
    assert "| 1.4x | 1.2x (lightgbm-sub-1m) | 1.5x (lightgbm-sub-1m) | **no** |" in lines[0]
    assert "| 2x | nobody gets there | 1.5x (xgboost-ext) | **no** |" in lines[1]


def test_a_peer_that_sparrow_never_meets_is_told_as_such():
    better = payload([run("sparrow", [0.5, 0.4]), run("lightgbm", [0.45, 0.3])])
    goal = goals.Goal("table10m", "1GB", ("lightgbm",), 2)
    times = goals.on_own_ground(goal, {"table10m": [better]})
    assert goals.named(times) == "not as good (lightgbm)"


def test_a_goal_may_compare_results_under_two_caps():
    goal = goals.Goal("table10m", "1GB", ("lightgbm",), 2, theirs="none")
    times, name = goals.at_target(goal, {"table10m": [CAPPED, FREE]})
    assert times == pytest.approx(1.0, abs=0.01) and name == "lightgbm"


def test_losses_and_reading_are_held_against_their_goals():
    worse = payload([run("sparrow", [0.5, 0.3]), run("lightgbm", [0.4, 0.2])], memory="none")
    lines = goals.loss_table({"first": [worse], "second": [CAPPED]}).splitlines()[2:]
    assert lines[0] == "| first | no cap | +50.00 % (lightgbm) | **no** |  |  |"
    assert lines[1] == "| second | 1GB | -42.86 % (lightgbm-sub-1m) | yes | 5.5x | **no** |"


def test_goals_without_results_are_not_measured(tmp_path):
    assert goals.block(standings.read_results(tmp_path)) == goals.NOT_MEASURED
