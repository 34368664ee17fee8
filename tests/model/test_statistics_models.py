"""Models with statistics of categories: their files, export, constraints and importances."""

from __future__ import annotations

import hashlib
import json
import logging
from base64 import b64decode, b64encode

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pytest

from constants import set_constants
from sparrowboost import (
    DataError,
    Dataset,
    Model,
    ModelFileError,
    SparrowClassifier,
    SparrowRegressor,
    cv,
    feature_importances,
    ingest,
    load_model,
    train,
)
from sparrowboost.cli import main
from sparrowboost.learner.interactions import Interactions
from sparrowboost.learner.monotone import Monotone

ROWS = 3_000


def made_table(seed=0, n=ROWS):
    rng = np.random.default_rng(seed)
    k = np.minimum(rng.geometric(1 / 150, n), 700)
    y = (rng.random(n) < 0.15 + 0.7 * (k % 5 == 0)).astype(np.int64)
    names = [None if one % 101 == 0 else f"véhicule {one}" for one in k]
    return pa.table({"c": names, "x": rng.normal(size=n), "y": y})


@pytest.fixture(scope="module")
def table():
    return made_table()


@pytest.fixture(scope="module")
def model(table):
    dataset = ingest(table, label="y", verbose=0)
    model = train(dataset, n_estimators=15, max_leaves=8, verbose=0)
    used = {int(j) for tree in model.trees for j in tree.feature}
    assert used & {2, 3}  # else there is nothing to test
    return model


def saved(model, path):
    model.save_model(path)
    return load_model(path)


def test_a_model_with_statistics_comes_back_to_the_bit(model, tmp_path):
    for name in ("m.json", "m.json.gz"):
        loaded = saved(model, tmp_path / name)
        assert loaded.digest == model.digest
        assert loaded.feature_names == ["c", "x", "c (mean)", "c (count)"]
        other = made_table(1)
        expected = model.decision_function(other)
        np.testing.assert_array_equal(loaded.decision_function(other), expected)
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["version"] == 6


def test_models_of_numbers_and_of_more_classes_come_back_too(table, tmp_path):
    y = table["y"].to_numpy()
    for label, how in (
        (y * 2.5, {"task": "regression"}),
        (np.array(["a", "b", "c"])[(y + np.arange(ROWS)) % 3], {}),
    ):
        dataset = ingest(table.drop(["y"]), label=label, verbose=0, **how)
        made = train(dataset, n_estimators=3, verbose=0)
        loaded = saved(made, tmp_path / "m.json")
        assert json.loads((tmp_path / "m.json").read_text())["version"] == 6
        assert (loaded.task, loaded.classes, loaded.digest) == (
            made.task, made.classes, made.digest
        )  # fmt: skip


def test_a_large_file_is_cut_apart_and_read_like_a_small_one(model, tmp_path, monkeypatch):
    model.save_model(tmp_path / "m.json")
    set_constants(monkeypatch, parsed_at_once=3_000)
    assert load_model(tmp_path / "m.json").digest == model.digest


def test_models_without_statistics_have_the_version_that_they_had(table, tmp_path):
    dataset = ingest(table, label="y", category_statistics=False, verbose=0)
    train(dataset, n_estimators=2, verbose=0).save_model(tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["version"] == 2
    assert [sorted(feature) for feature in document["features"]] == [
        ["categories", "kind", "name"], ["kind", "name", "thresholds"]
    ]  # fmt: skip


def naive_hash(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) % 2**64
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) % 2**64
    return h ^ (h >> 31)


def test_the_file_has_the_bins_of_each_category_as_the_docs_say(model, tmp_path):
    model.save_model(tmp_path / "m.json")
    feature = json.loads((tmp_path / "m.json").read_text())["features"][0]
    hashes = np.frombuffer(b64decode(feature["hashes"]), "<u8")
    bins = np.frombuffer(b64decode(feature["bins"]), np.uint8).reshape(len(hashes), 2)
    texts = ["véhicule 5", "véhicule 12", "new"]
    out = np.empty((3, 4), np.uint8)
    batch = pa.RecordBatch.from_pydict({"c": texts, "x": [0.0] * 3})
    model.binning.apply(batch, out)
    for text, row in zip(texts, out, strict=True):
        at = np.flatnonzero(hashes == np.uint64(naive_hash(text)))
        assert len(at) == (text != "new")
        expected = bins[at[0]].tolist() if len(at) else feature["unknown"]
        assert row[2:].tolist() == expected


def test_the_digest_covers_the_statistics_as_the_docs_say(model, tmp_path):
    model.save_model(tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    parts = [b"logistic", np.array(document["base_score"], "<f8").tobytes()]
    parts.append(json.dumps([document["label"], *document["classes"]]).encode())
    c, x = document["features"]
    parts += [json.dumps(["c", "category"]).encode(), json.dumps(c["categories"]).encode()]
    parts += [json.dumps(["x", x["kind"]]).encode(), np.array(x["thresholds"], "<f8").tobytes()]
    parts.append(json.dumps(["c", *c["statistics"]]).encode())
    parts += [np.array(cuts, "<f4").tobytes() for cuts in c["statistics_thresholds"]]
    parts.append(bytes(c["unknown"]))
    parts += [b64decode(c["hashes"]), b64decode(c["bins"])]
    text = b"".join(len(part).to_bytes(8, "little") + part for part in [*parts, b"trees"])
    without_trees = Model(model.binning, model.classes, model.loss, model.base_score, (), "y")
    assert without_trees.digest == hashlib.sha256(text).hexdigest()


def numbers(text, width="<u8"):
    return np.frombuffer(b64decode(text), width).copy()


def packed(array):
    return b64encode(array.tobytes()).decode()


DAMAGES = {
    "no base64": (lambda f: f.update(hashes="?" + f["hashes"][1:]), "not base64"),
    "half a hash": (lambda f: f.update(hashes=f["hashes"][:-12]), "not base64 of items of 8"),
    "a number": (lambda f: f.update(bins=3), "text is needed"),
    "order": (lambda f: f.update(hashes=packed(numbers(f["hashes"])[::-1])), "do not ascend"),
    "fewer bins": (lambda f: f.update(bins=packed(numbers(f["bins"], "u1")[:-2])), "rows of bins"),
    "a bin too many": (
        lambda f: f.update(bins=packed(np.full_like(numbers(f["bins"], "u1"), 255))),
        "that its thresholds do not make",
    ),
    "unknown": (lambda f: f.update(unknown=[0, 256]), "unknown"),
    "lengths": (lambda f: f.update(unknown=[0]), "equal lengths"),
    "nothing": (
        lambda f: f.update(statistics=[], statistics_thresholds=[], unknown=[]), "equal lengths"
    ),
    "thresholds": (
        lambda f: f["statistics_thresholds"][0].reverse(), "thresholds.* do not ascend"
    ),
    "many thresholds": (
        lambda f: f.update(statistics_thresholds=[list(range(255)), [1.0]]), "more than 254"
    ),
    "a key": (lambda f: f.pop("unknown"), "lacks 'unknown'"),
    "more keys": (lambda f: f.update(more=1), "not a known key"),
    "rows": (lambda f: f["made_of"].__setitem__(0, -1), "made_of"),
    "checksum": (lambda f: f["made_of"].__setitem__(1, "12"), "16 hexadecimal digits"),
    "means": (lambda f: f["made_of"].append(0.5), "made_of has 4 items, and needs 3"),
    "a name twice": (lambda f: f.update(statistics=["x", "c (count)"]), "'x' twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_statistics_that_are_no_whole_ones_are_refused_in_one_line(model, tmp_path, name):
    model.save_model(tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    damage, match = DAMAGES[name]
    del document["digest"]
    damage(document["features"][0])
    (tmp_path / "m.json").write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match=match) as caught:
        load_model(tmp_path / "m.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [1, 2])
def test_older_versions_have_no_statistics(model, tmp_path, version):
    model.save_model(tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    del document["digest"]
    (tmp_path / "m.json").write_text(json.dumps({**document, "version": version}))
    with pytest.raises(ModelFileError, match="'statistics', which is not a known key"):
        load_model(tmp_path / "m.json")


def test_an_edited_bin_is_found_by_the_digest(model, tmp_path):
    model.save_model(tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    bins = numbers(document["features"][0]["bins"], "u1")
    bins[0] = (bins[0] + 1) % 3
    document["features"][0]["bins"] = packed(bins)
    (tmp_path / "m.json").write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match="was edited"):
        load_model(tmp_path / "m.json")


def test_xgboost_gets_the_statistics_as_columns(model, tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    other = made_table(2)
    model.to_xgboost(tmp_path / "x.json")
    booster = xgboost.Booster(model_file=tmp_path / "x.json")
    frame = model.xgboost_frame(other)
    assert list(frame) == ["c (code)", "x", "c (mean)", "c (count)"]
    margins = booster.predict(xgboost.DMatrix(frame), output_margin=True)
    np.testing.assert_allclose(margins, model.decision_function(other), rtol=0, atol=1e-5)


def test_a_category_has_the_same_statistics_from_any_source(model, tmp_path):
    other = made_table(2)
    pcsv.write_csv(other, tmp_path / "t.csv")
    expected = model.decision_function(other)
    coded = other.set_column(0, "c", other["c"].combine_chunks().dictionary_encode())
    for source in (tmp_path / "t.csv", coded, other.to_pandas()):
        np.testing.assert_array_equal(model.decision_function(source), expected)


def test_statistics_are_used_with_the_column_that_they_are_of(model):
    binning = model.binning
    constraints = Interactions.of([["c"], ["x"]], binning)
    assert constraints.allowed(frozenset()).tolist() == [0, 1, 2, 3]
    assert constraints.allowed(frozenset({3})).tolist() == [0, 2, 3]
    assert constraints.allowed(frozenset({1})).tolist() == [1]
    assert Interactions.of("no_interactions", binning).allowed(frozenset({0})).tolist() == [0, 2, 3]
    pairs = Interactions.of("pairwise", binning)
    assert pairs.allowed(frozenset({0, 2})).tolist() == [0, 1, 2, 3]
    assert pairs.allowed(frozenset({1, 2})).tolist() == [0, 1, 2, 3]
    assert Interactions.of([["c", "x"]], binning).to_json() == [[0, 1]]


def test_statistics_may_have_a_sign_by_name(model):
    assert Monotone.of({"c (mean)": 1}, model.binning).sign.tolist() == [0, 0, 1, 0]
    assert Monotone.of([0, -1], model.binning).sign.tolist() == [0, -1, 0, 0]
    with pytest.raises(DataError, match="has 3 entries and the data 2 features"):
        Monotone.of([0, 1, 0], model.binning)


def test_estimators_count_the_columns_that_they_were_given(table, tmp_path):
    frame = table.drop(["y"]).to_pandas()
    y = table["y"].to_numpy()
    for kind, labels in ((SparrowClassifier, y), (SparrowRegressor, y * 2.0)):
        fitted = kind(n_estimators=5).fit(frame, labels, eval_set=(frame, labels))
        assert fitted.n_features_in_ == 2
        assert fitted.feature_names_in_.tolist() == ["c", "x"]
        assert fitted.model_.feature_names[2:] == ["c (mean)", "c (count)"]
        shares = feature_importances(fitted.model_)
        np.testing.assert_allclose(
            fitted.feature_importances_, [shares[0] + shares[2] + shares[3], shares[1]]
        )
        again = kind(n_estimators=2).fit(frame, labels, init_model=fitted)
        assert again.predict(frame).shape == (ROWS,)
        fitted.save_model(tmp_path / "m.json")
        loaded = kind().load_model(tmp_path / "m.json")
        np.testing.assert_array_equal(loaded.predict(frame), fitted.predict(frame))
        off = kind(n_estimators=5, category_statistics=False).fit(frame, labels)
        assert off.model_.feature_names == ["c", "x"]


@pytest.mark.parametrize("classes", [2, 3, 12])
def test_training_that_goes_on_does_not_show_rows_their_own_labels(classes, caplog):
    rng = np.random.default_rng(4)
    ids, y = np.arange(6_000) // 3, rng.integers(0, classes, 6_000)  # a coin
    names = pa.array([f"u{k}" for k in ids[rng.permutation(6_000)]])
    frame = pa.table({"id": names}).to_pandas()
    how = {"n_estimators": 2 if classes == 12 else 8, "max_leaves": 8}
    model = SparrowClassifier(warm_start=True, random_state=0, **how).fit(frame, y)
    assert "id (count)" in model.model_.feature_names
    n = len(model.model_.trees)

    def gain(trees):
        return sum(tree.gain.sum() for tree in trees)

    first = gain(model.model_.trees)
    with caplog.at_level(logging.WARNING, "sparrowboost"):
        caplog.clear()
        again = SparrowClassifier(**how).fit(frame, y, init_model=model)
        model.set_params(n_estimators=2 * how["n_estimators"]).fit(frame, y)
        assert caplog.records == []
        other = SparrowClassifier(**how).fit(frame[:-1], y[:-1], init_model=again)
    assert "see their own labels" in caplog.text
    for goes_on in (model, again):
        assert gain(goes_on.model_.trees[n:]) < 2 * first
    # With their own labels, these rows are learned by heart.
    assert gain(other.model_.trees[2 * n :]) > 2 * first


def test_cross_validation_takes_the_parameter(table):
    on, off = (
        cv(table, label="y", n_folds=2, n_estimators=8, category_statistics=way, verbose=0)
        for way in (True, False)
    )
    assert on.best_score < off.best_score


def test_the_commands_know_statistics(table, tmp_path, capsys):
    pcsv.write_csv(table, tmp_path / "t.csv")
    data, store, path = (str(tmp_path / name) for name in ("t.csv", "s", "m.json"))
    assert not main(["ingest", data, "--label", "y", "-o", store, "-q"])
    assert not main(["train", store, "-o", path, "--n-estimators", "5", "-q"])
    assert not main(["inspect", path])
    assert "c (mean)" in capsys.readouterr().out
    assert not main(["importance", path, "--json"])
    assert "c (count)" in capsys.readouterr().out
    assert not main(["export", path, "-o", str(tmp_path / "x.json")])
    told = "Model.xgboost_frame makes the columns of statistics, 'c (mean)', 'c (count)'."
    assert told in capsys.readouterr().out
    assert not main(
        ["ingest", data, "--label", "y", "-o", f"{store}2", "--no-category-statistics", "--json"]
    )
    assert json.loads(capsys.readouterr().out)["n_features"] == 2


def test_statistics_and_offsets_are_in_the_same_store_and_file(table, tmp_path):
    shift = pa.array(np.linspace(-1, 1, ROWS))
    rows = table.append_column("shift", shift)
    dataset = ingest(rows, label="y", offset="shift", path=tmp_path / "s", verbose=0)
    again = Dataset(tmp_path / "s")
    assert (again.feature_names, again.offset_name) == (dataset.feature_names, "shift")
    made = train(again, n_estimators=4, verbose=0)
    loaded = saved(made, tmp_path / "m.json")
    assert (loaded.digest, loaded.offset_name) == (made.digest, "shift")
    np.testing.assert_array_equal(loaded.decision_function(rows), made.decision_function(rows))


def test_a_file_that_claims_statistics_and_has_none_is_refused(table, tmp_path):
    dataset = ingest(table, label="y", category_statistics=False, verbose=0)
    train(dataset, n_estimators=2, verbose=0).save_model(tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps({**document, "version": 6}))
    with pytest.raises(ModelFileError, match="has no statistics of categories"):
        load_model(tmp_path / "m.json")
