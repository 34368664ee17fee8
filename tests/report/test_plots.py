from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from builders import made_rows, make_model, make_stump, numbered_rows
from sparrowboost import DataError, History, MissingExtraError, feature_importances, ingest, train
from sparrowboost.plots import (
    plot_draws,
    plot_edges,
    plot_importance,
    plot_sample,
    plot_training,
)
from sparrowboost.report.draws_plot import FAR, RATIOS
from sparrowboost.report.sample_plot import LEVELS, MAX_COLUMNS
from sparrowboost.report.style import MAX_NAME, shorten

matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.colors import to_rgba  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402


def trained(dataset, **kwargs):
    history = History()
    return train(dataset, callbacks=[history], verbose=0, **kwargs), history


@pytest.fixture(scope="module")
def drawn(dataset):
    """A model and a history of several samples, with AUC."""
    return trained(
        dataset, sample_size=3_000, theta=0.9, n_estimators=30, max_leaves=6, learning_rate=0.3,
        valid=made_rows(2_000, 1), eval_metric="auc",
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(dataset):
    """A model and a history of all rows in memory, without validation."""
    return trained(dataset, n_estimators=8)


def new_figure(**options):
    """A figure without a window, of which pyplot does not know."""
    figure = Figure(layout="constrained", **options)
    FigureCanvasAgg(figure)
    return figure


@pytest.fixture
def ax():
    return new_figure().add_subplot()


def lines_of(ax):
    """The lines that have points."""
    return [line for line in ax.lines if len(line.get_xdata())]


def labelled(ax, label):
    (line,) = (line for line in ax.lines if line.get_label() == label)
    return line


def slow(history, factor):
    """The same training on a slower machine."""
    data = history.to_json()
    for part in ("trees", "samples"):
        data[part]["seconds"] = [factor * s for s in data[part]["seconds"]]
    return History.from_json(data)


# -- scores against time --------------------------------------------------------------------------


def test_loss_and_auc_are_drawn_against_time_on_two_axes(drawn, ax):
    _, history = drawn
    assert plot_training(history, ax) is ax
    left, right = ax.figure.axes
    for axes, scores, best_of in (
        (left, history.scores["log_loss"], np.argmin),
        (right, history.scores["auc"], np.argmax),
    ):
        line, mark = axes.lines
        np.testing.assert_array_equal(line.get_xdata(), history.trees["seconds"])
        np.testing.assert_array_equal(line.get_ydata(), scores)
        best = int(best_of(scores))
        assert mark.get_xydata().tolist() == [[history.trees["seconds"][best], scores[best]]]
        assert axes.texts[0].get_text() == f"{scores[best]:.4g} at tree {best + 1}"
        assert to_rgba(axes.yaxis.label.get_color()) == to_rgba(line.get_color())
    assert left.get_xlabel() == "training time (s)"
    assert left.get_ylabel() == "log loss (nats per row)"
    assert right.get_ylabel() == "AUC"
    assert left.lines[0].get_color() != right.lines[0].get_color()


def test_without_auc_there_is_one_axis(dataset, ax):
    _, history = trained(dataset, n_estimators=3, valid=made_rows(500, 1))
    plot_training(history, ax)
    assert ax.figure.axes == [ax]


@pytest.mark.parametrize(
    ("last", "unit", "scale"), [(100, "s", 1), (900, "min", 60), (2e4, "h", 3600)]
)
@pytest.mark.parametrize("plot", [plot_training, plot_sample])
def test_long_times_are_in_minutes_or_hours(drawn, ax, plot, last, unit, scale):
    history = slow(drawn[1], last / drawn[1].trees["seconds"][-1])
    plot(history, ax)
    below = ax.child_axes[0] if ax.child_axes else ax
    assert below.get_xlabel() == f"training time ({unit})"
    assert max(line.get_xdata()[-1] for line in lines_of(ax)) == pytest.approx(last / scale)


def test_a_history_without_scores_cannot_be_drawn_as_scores(whole):
    with pytest.raises(DataError, match="valid="):
        plot_training(whole[1])


# -- importances ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gain", "splits"])
def test_bars_are_the_importances_from_the_largest_on(drawn, ax, kind):
    model, _ = drawn
    assert plot_importance(model, ax, max_features=3, kind=kind) is ax
    share = feature_importances(model, kind)
    order = np.argsort(-share)[:3]
    assert [bar.get_width() for bar in ax.patches] == share[order].tolist()
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [model.feature_names[j] for j in order]
    middles = [bar.get_y() + bar.get_height() / 2 for bar in ax.patches]
    assert middles == pytest.approx(ax.get_yticks())
    assert ax.yaxis_inverted()
    assert [text.get_text() for text in ax.texts] == [f"{s:.1%}" for s in share[order]]
    assert ax.get_xlabel().endswith("(top 3 of 4 features)")


def model_of(names, features):
    """A model with a stump on each of some features."""
    X = np.random.default_rng(0).random((100, len(names)))
    table = pa.table(dict(zip(names, X.T, strict=True)))
    model = make_model(ingest(table, label=X[:, 0] > 0.5, verbose=0))
    for feature in features:
        model = model.with_tree(make_stump(feature, [0], 0.1, -0.1))
    return model


def test_features_without_splits_have_no_bar(ax):
    plot_importance(model_of(["a", "b", "c"], [1, 1, 0]), ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b", "a"]
    assert ax.get_xlabel() == "share of the loss reduction (top 2 of 3 features)"


def test_a_model_without_splits_has_no_picture(dataset):
    with pytest.raises(DataError, match="no splits"):
        plot_importance(make_model(dataset))


def test_names_are_drawn_as_they_are(ax):
    names = [r"$\frac$", "<b>", "a\nb\x00", "long " * 20, " "]
    plot_importance(model_of(names, range(5)), ax)
    ax.figure.canvas.draw()  # a name that were a formula would fail here
    shown = [label.get_text() for label in ax.get_yticklabels()]
    assert shown[:3] == [r"$\frac$", "<b>", "a b�"]
    assert shown[3].startswith("long long long")
    assert len(shown[3]) == MAX_NAME
    assert shown[4] == "' '"


def test_a_name_is_shortened_to_as_many_letters_as_there_is_room_for():
    assert shorten("x" * MAX_NAME) == "x" * MAX_NAME
    assert len(shorten("x" * (MAX_NAME + 1))) == MAX_NAME


# -- edges ----------------------------------------------------------------------------------------


def test_measured_and_certified_advantages_are_drawn_for_each_tree(drawn, ax):
    _, history = drawn
    assert plot_edges(history, ax) is ax
    for label, name in (("measured", "gamma"), ("certified", "gamma_certified")):
        line = labelled(ax, label)
        np.testing.assert_array_equal(line.get_xdata(), history.trees["n_trees"])
        np.testing.assert_array_equal(line.get_ydata(), history.trees[name])
    new = [line.get_xdata()[0] for line in ax.lines if line.get_color() == "#8c8c8c"]
    assert new == [n + 0.5 for n in history.samples["n_trees"][1:]]
    assert len(new) > 1
    entries = [text.get_text() for text in ax.get_legend().get_texts()]
    assert entries == ["measured", "certified", "new sample"]
    assert ax.get_ylim()[0] == 0


@pytest.mark.parametrize("plot", [plot_edges, plot_sample])
def test_a_history_without_trees_is_told_how_to_get_some(plot):
    with pytest.raises(DataError, match=r"callbacks=\[history\]"):
        plot(History())


# -- the sample -----------------------------------------------------------------------------------


def test_every_sample_is_a_line_from_when_it_was_new(drawn, ax):
    _, history = drawn
    assert plot_sample(history, ax) is ax
    trees, samples = history.trees, history.samples
    n_samples = len(samples["rows"])
    assert n_samples > 2
    bounds = [*samples["n_trees"], trees["n_trees"][-1]]
    for k, line in enumerate(lines_of(ax)[:n_samples]):
        mine = slice(bounds[k], bounds[k + 1])
        time = [samples["seconds"][k], *trees["seconds"][mine]]
        share = np.array([samples["n_eff"][k], *trees["n_eff"][mine]]) / samples["rows"][k]
        np.testing.assert_array_equal(line.get_xdata(), time)
        np.testing.assert_array_equal(line.get_ydata(), share)


def test_new_samples_are_marked_by_reason(drawn, ax):
    data = drawn[1].to_json()
    reasons = data["samples"]["reason"]
    assert len(reasons) >= 5
    reasons[1:5] = ["rules", "no split stands out", "n_eff", "patience"]
    history = History.from_json(data)
    plot_sample(history, ax)
    markers = set()
    for reason, label in (
        ("rules", "enough splits"), ("n_eff", "n_eff fell"), ("no split stands out", "no split"),
        ("patience", "no improvement"),
    ):  # fmt: skip
        line = labelled(ax, label)
        at = [
            t for t, why in zip(history.samples["seconds"], reasons, strict=True) if why == reason
        ]
        np.testing.assert_array_equal(line.get_xdata(), at)
        markers.add(line.get_marker())
    assert len(markers) == 4


def test_trees_go_with_the_last_of_several_samples_drawn_in_a_row(ax):
    data = History().to_json()
    data["trees"] |= {"n_trees": [1, 2], "seconds": [1.0, 4.0], "n_eff": [9.0, 8.0]}
    data["trees"] |= {"sample_rows": [10, 40], "gamma": [0.1, 0.1], "gamma_certified": [0, 0]}
    data["samples"] |= {
        "n_trees": [0, 1, 1], "seconds": [0.5, 2.0, 3.0], "rows": [10, 20, 40],
        "n_eff": [10.0, 20.0, 30.0], "strata": [{}, {}, {}],
        "reason": ["first", "no split stands out", "no split stands out"],
    }  # fmt: skip
    plot_sample(History.from_json(data), ax)
    first, second, third = lines_of(ax)[:3]
    assert first.get_xydata().tolist() == [[0.5, 1.0], [1.0, 0.9]]
    assert second.get_xydata().tolist() == [[2.0, 1.0]]
    assert third.get_xydata().tolist() == [[3.0, 0.75], [4.0, 0.2]]


def test_strata_are_drawn_below_as_shares_of_the_weight(drawn, ax):
    _, history = drawn
    plot_sample(history, ax)
    (below,) = ax.child_axes
    (mesh,) = below.collections
    times, powers = mesh._coordinates[0, :, 0], mesh._coordinates[:, 0, 1]
    np.testing.assert_array_equal(times[:-1], history.samples["seconds"])
    assert times[-1] == history.trees["seconds"][-1]
    shares = mesh.get_array().filled(0)
    for column, strata in zip(shares.T, history.samples["strata"], strict=True):
        total = sum(strata.values())
        expected = [strata.get(int(k), 0.0) / total for k in powers[:-1]]
        np.testing.assert_allclose(column, expected)
    assert shares.sum(0) == pytest.approx(1, abs=0.02)
    alphas = mesh.cmap(mesh.norm((np.array(LEVELS[1:]) + LEVELS[:-1]) / 2))[:, 3]
    assert (np.diff(alphas) > 0.05).all()


def test_many_draws_are_thinned_out(drawn, ax):
    data = drawn[1].to_json()
    n = 3 * MAX_COLUMNS + 1
    strata = [{"0": 1.0, "-1": float(k)} for k in range(n)]
    data["samples"] |= {
        "n_trees": [0] * n, "seconds": np.linspace(0, 1, n).tolist(), "rows": [10] * n,
        "n_eff": [5.0] * n, "strata": strata, "reason": ["rules"] * n,
    }  # fmt: skip
    plot_sample(History.from_json(data), ax)
    shares = ax.child_axes[0].collections[0].get_array()
    step = 4
    np.testing.assert_allclose(shares[0], [k / (k + 1) for k in range(0, n, step)])


def test_both_parts_stay_in_the_place_of_the_axes(drawn):
    figure = new_figure(figsize=(8, 6))
    axes = figure.subplots(2, 2)
    plot_sample(drawn[1], axes[0, 0])
    plot_edges(drawn[1], axes[1, 0])
    figure.canvas.draw()
    boxes = [axes[0, 0], axes[0, 0].child_axes[0], axes[1, 0]]
    upper, lower, other = (box.get_tightbbox(figure.canvas.get_renderer()) for box in boxes)
    window = [box.get_window_extent() for box in boxes]
    assert window[0].y0 > window[1].y1 > window[1].y0 > window[2].y1
    assert lower.y0 > other.y1
    assert figure.bbox.x0 <= lower.x0
    assert upper.y1 <= figure.bbox.y1
    assert window[0].x0 == pytest.approx(window[1].x0)
    assert window[0].x1 == pytest.approx(window[1].x1)


def test_without_strata_there_is_no_part_below(whole, ax):
    plot_sample(whole[1], ax)
    assert ax.child_axes == []
    assert ax.get_xlabel() == "training time (s)"
    assert ax.get_legend() is None


# -- draws and proofs, looked back at -------------------------------------------------------------


def with_looks(**columns):
    """A history of samples of which only this is known."""
    history = History()
    n = len(next(iter(columns.values())))
    history.samples = {name: [None] * n for name in history.samples} | columns
    history.samples["strata"] = [{0: 1.0}] * n
    return history


LOOKS = {
    "look_trees": [None, 5, 5, None], "own": [None, 0.1, 0.04, None],
    "fresh": [None, 0.09, 0.01, None], "error": [None, 0.002, 0.001, None],
    "gamma": [None, 0.2, 0.1, None], "gamma_certified": [None, 0.1, 0.0, None],
    "gamma_fresh": [None, 0.19, 0.05, None],
    "deviation_negative": [0.0, 1.0, -1.5, 0.2], "deviation_positive": [0.1, -1.0, 0.5, 2.5],
}  # fmt: skip


def test_advantages_are_drawn_as_certified_measured_and_on_fresh_rows(drawn, ax):
    _, history = drawn
    samples = history.samples
    assert any(trees is not None for trees in samples["look_trees"])
    assert plot_draws(history, ax) is ax
    number = np.arange(1, len(samples["own"]) + 1)
    markers = set()
    for label, name in (
        ("measured", "gamma"), ("certified", "gamma_certified"), ("on fresh rows", "gamma_fresh"),
    ):  # fmt: skip
        line = labelled(ax, label)
        np.testing.assert_array_equal(line.get_xdata(), number)
        np.testing.assert_array_equal(line.get_ydata(), np.array(samples[name], np.float64))
        markers.add((line.get_color(), line.get_marker()))
    assert len({color for color, _ in markers}) == len({shape for _, shape in markers}) == 3
    assert ax.get_ylim()[0] <= 0


def test_falls_are_drawn_as_what_fresh_rows_see_of_them(ax):
    plot_draws(with_looks(**LOOKS), ax)
    falls, rows = ax.child_axes
    line = labelled(falls, "loss reduction")
    np.testing.assert_allclose(line.get_ydata(), [np.nan, 0.9, 0.25, np.nan])
    (bars,) = falls.collections
    bars = [segment[:, 1] for segment in bars.get_segments() if len(segment)]
    np.testing.assert_allclose(bars[-2:], [[0.86, 0.94], [0.2, 0.3]])  # two deviations either way
    assert falls.get_ylabel() == "fresh / own"
    assert rows.get_xlabel() == "sample"


def test_deviations_of_labels_are_drawn_between_lines_at_two(ax):
    plot_draws(with_looks(**LOOKS), ax)
    rows = ax.child_axes[1]
    for label in ("negative", "positive"):
        np.testing.assert_array_equal(
            labelled(rows, f"{label} rows").get_ydata(), LOOKS[f"deviation_{label}"]
        )
    levels = [line.get_ydata()[0] for line in rows.lines if line.get_linestyle() == "--"]
    assert levels == [-2, 2]
    assert rows.get_ylim()[1] > 2.5


def test_what_is_off_the_scale_stands_at_its_end(ax):
    off = {"fresh": [None, 9.0, -9.0, None], "deviation_negative": [0.0, -124.0, 8.0, 0.0]}
    plot_draws(with_looks(**LOOKS | off), ax)
    falls, rows = ax.child_axes
    assert labelled(falls, "loss reduction").get_ydata()[1:3].tolist() == [*RATIOS[::-1]]
    assert falls.get_ylim() == RATIOS
    assert labelled(rows, "negative rows").get_ydata().tolist() == [0.0, -FAR, FAR, 0.0]
    assert rows.get_ylim()[0] < -FAR
    ax.figure.canvas.draw()


def test_trees_that_gained_nothing_have_no_ratio(ax):
    plot_draws(with_looks(**LOOKS | {"own": [None, 0.0, -0.1, None]}), ax)
    assert np.isnan(labelled(ax.child_axes[0], "loss reduction").get_ydata()).all()
    ax.figure.canvas.draw()


def test_samples_are_numbered_by_whole_numbers(ax):
    plot_draws(with_looks(**{name: column[:2] for name, column in LOOKS.items()}), ax)
    ax.figure.canvas.draw()
    ticks = [t for t in ax.child_axes[1].get_xticks() if 0.5 <= t <= 2.5]
    assert ticks == [1, 2]


def test_samples_that_do_not_look_back_show_their_deviations(ax):
    columns = {name: LOOKS[name] for name in ("deviation_negative", "deviation_positive")}
    plot_draws(with_looks(**columns), ax)
    assert ax.child_axes == []
    assert ax.get_xlabel() == "sample"
    assert labelled(ax, "positive rows").get_ydata().tolist() == LOOKS["deviation_positive"]


def test_a_training_without_draws_has_none_to_be_judged(whole, drawn):
    older = History.from_json(drawn[1].to_json() | {"version": 1})
    for history in (whole[1], older, History()):
        with pytest.raises(DataError, match="no draws"):
            plot_draws(history)


def test_the_three_parts_stay_in_the_place_of_the_axes(drawn):
    figure = new_figure(figsize=(8, 9))
    axes = figure.subplots(2, 1)
    plot_draws(drawn[1], axes[0])
    plot_edges(drawn[1], axes[1])
    figure.canvas.draw()
    parts = [axes[0], *axes[0].child_axes, axes[1]]
    window = [part.get_window_extent() for part in parts]
    for upper, lower in pairwise(window):
        assert upper.y0 > lower.y1
        assert upper.x0 == pytest.approx(lower.x0)
        assert upper.x1 == pytest.approx(lower.x1)


# -- matplotlib -----------------------------------------------------------------------------------


def pictures(model, history):
    plots = [plot_training, plot_edges, plot_sample]
    if any(history.samples["strata"]):
        plots.append(plot_draws)
    on_history = [(plot, history) for plot in plots]
    return [(plot_importance, model), *on_history]


@pytest.mark.slow
def test_axes_that_are_given_are_used_and_no_figure_is_made(drawn):
    for plot, what in pictures(*drawn):
        given = new_figure().add_subplot()
        assert plot(what, ax=given) is given
        given.figure.canvas.draw()
    assert pyplot.get_fignums() == []


def test_without_axes_each_picture_gets_a_figure(drawn):
    axes = [plot(what) for plot, what in pictures(*drawn)]
    assert len(pyplot.get_fignums()) == 5
    for one in axes:
        one.figure.canvas.draw()
        pyplot.close(one.figure)


def test_a_missing_matplotlib_is_told_how_to_install(drawn, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sparrowboost\[plot\]'"):
        plot_edges(drawn[1])


def test_matplotlib_is_not_loaded_before_it_is_needed():
    code = (
        "import sys, sparrowboost; sparrowboost.plots, sparrowboost.History, "
        "sparrowboost.write_report; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pictures_of_a_training_of_one_tree_can_be_drawn():
    dataset = numbered_rows(200, np.arange(200) > 90)
    for plot, what in pictures(*trained(dataset, n_estimators=1, valid=(np.zeros((2, 2)), [0, 1]))):
        plot(what, new_figure().add_subplot()).figure.canvas.draw()
