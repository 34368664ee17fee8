from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

import sparrowboost
from sparrowboost import DataError, History, Model, ingest, plots, train, write_report
from sparrowboost.learner.params import Params
from sparrowboost.report.history import LOOKS

pytest.importorskip("matplotlib", reason="a report has pictures, which need matplotlib")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
NAMES = [SCRIPT, IMAGE, "温度 & $x$", "a\x00b", "plain", "fill: #0072b2; x 3.14159265"]


def make_table(n=20_000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, len(NAMES)))
    y = X[:, 0] + X[:, 1] * (X[:, 2] > 0) + 0.5 * X[:, 3:].sum(1) + rng.normal(size=n) > 0
    label = np.where(y, "<yes>", "<no>")
    return pa.table({**dict(zip(NAMES, X.T, strict=True)), "<y>": label})


PARAMS = {"sample_size": 3_000, "theta": 0.9, "n_estimators": 25, "eval_metric": "auc"}


@pytest.fixture(scope="module")
def dataset():
    return ingest(make_table(), label="<y>", positive="<yes>", verbose=0)


@pytest.fixture(scope="module")
def run(dataset):
    """A model and a history of several samples, with validation."""
    history = History()
    valid = make_table(2_000, 1)
    return train(dataset, valid=valid, callbacks=[history], verbose=0, **PARAMS), history


@pytest.fixture(scope="module")
def page(run, dataset, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "page.html"
    about = {"command": f"sparrow train {SCRIPT}"}
    title = f"Clicks & {IMAGE}"
    assert write_report(
        str(path), *run, dataset=dataset, params=PARAMS, about=about, title=title
    ) == path  # fmt: skip
    return path


class Parts(HTMLParser):
    """Tags with their attributes, and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)

    def words(self):
        return " ".join(" ".join(self.text).split())


def words_of(path):
    return Parts(path.read_text("utf-8")).words()


# -- what the page says ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_tells_what_was_trained_on_what(page, run, dataset):
    model, history = run
    words = words_of(page)
    totals = history.totals
    rules = sum(history.trees["n_rules"])
    for fact in (
        "The model has 25 trees of up to 31 leaves.",
        f"20,000 rows of 6 features; {dataset.n_positive:,} rows are positive",
        "Training ended after the requested number of trees.",
        f"{totals['n_samples']} samples drawn, the last of {history.samples['rows'][-1]:,} rows",
        f"{totals['rows_read'] / totals['rows_kept']:.3g} rows read per row kept",
        f"{totals['rows_scanned'] / rules:,.0f} rows scanned per split",
        f"{max(history.scores['auc']):.4g} best validation AUC",
        f"{min(history.scores['log_loss']):.4g} best validation log loss",
        "peak memory of the process",
        "positive label '<yes>'",
        "negative label '<no>'",
        f"command sparrow train {SCRIPT}",
        "sample_size 3000",
        "learning_rate 0.1",
        "loss logistic",
        f"by sparrowboost {sparrowboost.__version__} with Python 3.",
    ):
        assert fact in words, fact
    assert isinstance(model, Model)


def test_parameters_that_were_changed_stand_out(page):
    text = page.read_text("utf-8")
    changed = re.findall(r'<dt>(\w+)</dt><dd class="changed">(.*?)</dd>', text)
    assert dict(changed) == {name: str(value) for name, value in PARAMS.items()}


def test_parameters_may_be_given_as_they_are_held(run, tmp_path):
    path = write_report(tmp_path / "a.html", *run, params=Params(**PARAMS))
    assert "sample_size 3000" in words_of(path)


def test_a_wrong_parameter_is_refused(run, tmp_path):
    with pytest.raises(DataError, match="unknown parameter"):
        write_report(tmp_path / "a.html", *run, params={"trees": 3})


def test_the_importances_are_in_a_table(page, run):
    from sparrowboost import feature_importances

    rows = re.findall(
        r'<tr><td class="name"><bdi>(.*?)</bdi></td><td class="number">([\d.]+)%</td>',
        page.read_text("utf-8"),
    )
    share = feature_importances(run[0])
    order = np.argsort(-share)
    assert [html.unescape(name) for name, _ in rows] == [
        NAMES[j].replace("\x00", "�") for j in order
    ]
    assert [float(s) for _, s in rows] == pytest.approx(100 * share[order], abs=0.006)


def test_scores_are_in_a_table(page, run):
    scores = run[1].scores["log_loss"]
    row = re.search(r"<tr><td>log loss</td>(.*?)</tr>", page.read_text("utf-8"))[1]
    numbers = [float(n) for n in re.findall(r'class="number">([\d.]+)', row)]
    assert numbers == pytest.approx([scores[0], min(scores), scores[-1]], rel=1e-3)
    assert f"tree {int(np.argmin(scores)) + 1}" in row


def test_without_data_parameters_or_validation_the_page_has_what_there_is(dataset, tmp_path):
    history = History()
    model = train(dataset, n_estimators=3, callbacks=[history], verbose=0)
    path = write_report(tmp_path / "a.html", model, history)
    words = words_of(path)
    assert path.read_text("utf-8").count("<svg") == 3
    assert "sample: all rows" in words
    assert "no samples were drawn" in words
    assert "validation" not in words
    assert "Parameters" not in words
    assert "features 6" in words


@pytest.mark.slow
def test_the_page_shows_of_draws_what_is_known(run, dataset, tmp_path):
    path, data = tmp_path / "a.html", run[1].to_json()
    samples = data["samples"]
    n = len(samples["n_trees"])
    looks = dict.fromkeys(LOOKS, [None] * (n - 1) + [0.1])

    def shown(history, model=run[0]):
        words = words_of(write_report(path, model, history))
        return "loss reduction on fresh rows" in words, "label that it represents" in words

    data["samples"] = samples | looks
    assert shown(History.from_json(data)) == (True, True)
    data["samples"] = samples | dict.fromkeys(LOOKS, [None] * n)
    assert shown(History.from_json(data)) == (False, True)
    assert shown(History.from_json(data | {"version": 1})) == (False, False)
    history = History()
    model = train(dataset, n_estimators=3, callbacks=[history], verbose=0)
    assert shown(history, model) == (False, False)


def test_the_page_repeats_what_training_warned_of(page, run, tmp_path):
    assert "Warning:" not in words_of(page)
    data = run[1].to_json()
    data["samples"]["deviation_positive"][1] = 9.0
    path = write_report(tmp_path / "a.html", run[0], History.from_json(data))
    n_trees = data["samples"]["n_trees"][1]
    warning = f"Warning: a draw is off: the sample put in use after {n_trees} trees stands"
    assert warning in words_of(path)


def test_a_report_of_an_early_stop_tells_how_many_trees_were_kept(dataset, tmp_path):
    history = History()
    model = train(
        dataset, n_estimators=200, learning_rate=2.0, early_stopping_rounds=3,
        valid=make_table(2_000, 1), callbacks=[history], verbose=0,
    )  # fmt: skip
    words = words_of(write_report(tmp_path / "a.html", model, history))
    assert model.n_trees < history.totals["n_trees"]
    assert f"has {model.n_trees} trees (the best of {history.totals['n_trees']})" in words
    assert "because the validation score had stopped improving" in words


def test_a_training_without_any_tree_has_a_report_too(tmp_path):
    dataset = ingest(np.ones((500, 2)), label=np.arange(500) % 2, verbose=0)
    history = History()
    model = train(dataset, callbacks=[history], verbose=0)
    assert model.n_trees == 0
    path = write_report(tmp_path / "a.html", model, history, dataset=dataset)
    assert "because no further split could be told from noise" in words_of(path)
    assert "<svg" not in path.read_text("utf-8")
    write_report(path, model, History())  # one that heard nothing


# -- the page is one harmless file ----------------------------------------------------------------


def test_names_from_the_data_are_text_and_nothing_else(page):
    parts = Parts(page.read_text("utf-8"))
    words = parts.words()
    for name in (SCRIPT, IMAGE, "温度 & $x$", "a�b", "fill: #0072b2; x 3.14159265"):
        assert words.count(name) >= 2, name  # in the picture and in the table
    tags = {tag for tag, _ in parts.tags}
    assert not tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form"}
    for _, attributes in parts.tags:
        assert not [name for name in attributes if name.startswith("on")]


def test_the_page_refers_to_nothing_outside(page):
    text = page.read_text("utf-8")
    for _, attributes in Parts(text).tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert attributes.get(name, "#").startswith("#")
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_pictures_take_their_colours_from_the_page(page):
    svgs = re.findall(r"<svg.*?</svg>", page.read_text("utf-8"), re.DOTALL)
    assert len(svgs) == 5
    for svg in svgs:
        styles = " ".join(attributes.get("style", "") for _, attributes in Parts(svg).tags)
        assert set(re.findall(r"#[0-9a-f]{6}", styles)) <= {"#ffffff"}
        assert "var(--blue)" in styles
        assert "font-size: " in styles
        assert "DejaVu" not in styles


def test_no_two_things_of_the_page_have_one_name(page):
    ids = [attributes["id"] for _, attributes in Parts(page.read_text("utf-8")).tags
           if "id" in attributes]  # fmt: skip
    assert len(set(ids)) == len(ids) > 0
    used = set(re.findall(r'(?:href="|url\()#(\w+)', page.read_text("utf-8")))
    assert used <= set(ids)


def test_the_page_is_small(page):
    assert page.stat().st_size < 300_000


@pytest.mark.slow
def test_a_users_style_of_pictures_stays_the_users(run, tmp_path):
    import matplotlib as mpl

    with mpl.rc_context({"text.usetex": True, "font.size": 40.0}):
        before = dict(mpl.rcParams)
        path = write_report(tmp_path / "a.html", *run)
        assert dict(mpl.rcParams) == before
    assert "font-size: 40" not in path.read_text("utf-8")


@pytest.mark.slow
def test_a_page_that_is_there_is_replaced_whole_or_not_at_all(run, tmp_path, monkeypatch):
    path = tmp_path / "a.html"
    path.write_text("before")

    def fail(*args):
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no"):
            write_report(path, *run)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.html"]
    write_report(path, *run)
    assert path.read_text("utf-8").endswith("</html>\n")
    assert os.listdir(tmp_path) == ["a.html"]


def test_a_folder_that_is_not_there_is_named(run, tmp_path):
    with pytest.raises(DataError, match=r"no folder .*gone; create it first"):
        write_report(tmp_path / "gone" / "a.html", *run)


def test_a_missing_matplotlib_is_told_before_anything_is_written(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"sparrowboost\[plot\]"):
        write_report(tmp_path / "a.html", *run)
    assert os.listdir(tmp_path) == []


# -- in a browser ---------------------------------------------------------------------------------

# The page is opened in a frame of another one, whose script looks at it: it has none itself.
PROBE = """<!DOCTYPE html><meta charset="utf-8">
<iframe id="frame" src="page.html" style="width:{width}px;height:4000px;border:0"></iframe>
<pre id="found"></pre>
<script>
window.onload = () => {{
  const view = document.getElementById("frame").contentWindow, page = view.document;
  const pictures = [...page.querySelectorAll("svg")].map(svg => {{
    const shown = svg.getBoundingClientRect(), inside = svg.getBBox();
    return {{natural: [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height],
             shown: [shown.width, shown.height], drawn: [inside.width, inside.height],
             label: svg.getAttribute("aria-label")}};
  }});
  const style = view.getComputedStyle(page.body);
  document.getElementById("found").textContent = JSON.stringify({{
    title: page.title, pictures,
    loaded: view.performance.getEntriesByType("resource").map(entry => entry.name),
    wide: page.documentElement.scrollWidth, paper: style.backgroundColor, ink: style.color,
    line: view.getComputedStyle(page.querySelector("svg text")).fill,
    scripts: page.scripts.length, images: page.images.length,
  }});
}};
</script>
"""


def look(page, tmp_path, width, *options):
    """What a browser finds of a page, and what it says of it."""
    shutil.copy(page, tmp_path / "page.html")
    (tmp_path / "probe.html").write_text(PROBE.format(width=width))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
        "--allow-file-access-from-files", "--enable-logging=stderr", "--window-size=1400,1000",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # nor shall the browser ask anybody itself
        "--hide-scrollbars", *options, "--dump-dom", (tmp_path / "probe.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1]
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(html.unescape(found)), said


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [1200, 400])
def test_a_browser_shows_the_page_without_script_network_or_complaint(page, tmp_path, width):
    found, said = look(page, tmp_path, width)
    assert said == []
    assert found["title"] == f"Clicks & {IMAGE}"
    assert found["scripts"] == found["images"] == 0
    assert found["loaded"] == []
    assert len(found["pictures"]) == 5
    for picture in found["pictures"]:
        for size in ("natural", "shown", "drawn"):
            assert min(picture[size]) > 100, picture
        assert picture["shown"][0] <= width
    assert found["wide"] <= width, "the page is wider than the window"


@needs_browser
def test_a_page_that_loads_or_complains_would_be_noticed(tmp_path):
    (tmp_path / "bad").mkdir()
    bad = tmp_path / "bad" / "bad.html"
    bad.write_text(
        "<body><svg viewBox='0 0 1 1'><text>x</text></svg><div style='width:2000px'>x</div>"
        "<img src='http://sparrow.invalid/x.png'><script>console.error('bad')</script>"
    )
    found, said = look(bad, tmp_path, 400)
    assert found["loaded"] == ["http://sparrow.invalid/x.png"]
    assert any("bad" in line for line in said)
    assert found["wide"] >= 2000
    assert found["scripts"] == found["images"] == 1


@pytest.mark.slow
@needs_browser
def test_the_page_follows_the_browsers_light_or_dark_scheme(page, tmp_path):
    def lightness(color):
        return sum(int(c) for c in re.findall(r"\d+", color)[:3])

    schemes = {}
    for number, name in ((1, "light"), (0, "dark")):
        folder = tmp_path / name
        folder.mkdir()
        option = f"--blink-settings=preferredColorScheme={number}"
        schemes[name] = look(page, folder, 1200, option)[0]
    for part in ("ink", "line"):
        assert lightness(schemes["light"]["paper"]) > 600 > 200 > lightness(schemes["light"][part])
        assert lightness(schemes["dark"]["paper"]) < 150 < 600 < lightness(schemes["dark"][part])


def test_an_estimator_in_the_place_of_model_or_history_is_told_what_to_pass(run, tmp_path):
    model, history = run
    X = np.arange(200.0)[:, None]
    clf = sparrowboost.SparrowClassifier(n_estimators=3).fit(X, X[:, 0] > 80)
    with pytest.raises(DataError, match="SparrowClassifier; pass its model_"):
        write_report(tmp_path / "r.html", clf, history)
    draw = [plots.plot_training, plots.plot_edges, plots.plot_sample, plots.plot_draws]
    for call in (lambda clf: write_report(tmp_path / "r.html", model, clf), *draw):
        with pytest.raises(DataError, match=r"pass it to fit as callbacks=\[history\]"):
            call(clf)
    with pytest.raises(DataError, match=r"got dict; .* pass it to train as callbacks=\[history\]"):
        write_report(tmp_path / "r.html", model, {"log_loss": [0.5]})
    assert not list(tmp_path.iterdir())
    fitted = History()
    clf.fit(X, X[:, 0] > 80, callbacks=[fitted])
    assert "3 trees" in write_report(tmp_path / "r.html", clf.model_, fitted).read_text()
