from __future__ import annotations

import copy
import errno
import gzip
import hashlib
import json
import os
import tracemalloc
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparrowboost.model.file
from builders import assert_same_trees, clean, make_stump
from constants import set_constants
from helpers import small_table
from naive import random_tree
from sparrowboost import (
    DiskFullError,
    Model,
    ModelFileError,
    SparrowError,
    ingest,
    load_model,
    train,
)
from sparrowboost.model.file import shortest
from sparrowboost.model.regression import (
    AbsoluteError,
    Gamma,
    Huber,
    Poisson,
    Quantile,
    SquaredError,
    Tweedie,
)
from sparrowboost.store.binning import DTYPES, Binning, CategoryFeature, NumberFeature

DATA = Path(__file__).parents[1] / "data"
V1 = DATA / "model-v1.json"
DOCS = Path(__file__).parents[2] / "docs" / "model-files.md"


def make_model(binning, trees=(), classes=(0, 1), loss="logistic", base_score=-0.25):
    model = Model(binning, classes, loss, base_score)
    for tree in trees:
        model = model.with_tree(clean(tree, binning.features))
    return model


def assert_same_models(a, b):
    assert_same_trees(a, b)
    assert (a.classes, a.loss) == (b.classes, b.loss)
    assert [type(label) for label in a.classes] == [type(label) for label in b.classes]
    for one, other in zip(a.binning.features, b.binning.features, strict=True):
        assert (one.name, one.kind) == (other.name, other.kind)
        if isinstance(one, CategoryFeature):
            assert one.categories == other.categories
        else:
            assert one.thresholds.dtype == other.thresholds.dtype == DTYPES[one.kind]
            assert one.thresholds.tobytes() == other.thresholds.tobytes()


def saved(model, path):
    model.save_model(path)
    return load_model(path)


NUMBER = Binning((NumberFeature("x", "float64", np.array([0.5, 1.5])),))


# -- round trips -------------------------------------------------------------------------------

kinds = st.sampled_from([*DTYPES, "category"])


@st.composite
def features(draw, name):
    kind = draw(kinds)
    if kind == "category":
        words = draw(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=9))
        return CategoryFeature(name, tuple(dict.fromkeys(words)))
    dtype = np.dtype(DTYPES[kind])
    if dtype.kind == "f":
        values = st.floats(allow_nan=False, width=8 * dtype.itemsize)
    else:
        values = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    values = np.array(draw(st.lists(values, max_size=9)), dtype) + dtype.type(0)
    return NumberFeature(name, kind, np.unique(values))


labels = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


@st.composite
def models(draw):
    binning = Binning(tuple(draw(features(name)) for name in draw(st.sampled_from(["x", "xyz"]))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    trees = [
        random_tree(rng, len(binning.features), int(n)) for n in draw(st.lists(st.integers(1, 9)))
    ]
    base = draw(st.floats(-1e30, 1e30))
    negative, positive = draw(st.tuples(st.none() | labels, labels).filter(lambda p: p[0] != p[1]))
    loss = draw(st.sampled_from(["logistic", "exponential"]))
    return make_model(binning, trees, (negative, positive), loss, base)


@given(models(), st.sampled_from(["m.json", "m.json.gz", "m"]))
@settings(max_examples=60)
def test_a_model_comes_back_to_the_bit(tmp_path_factory, model, name):
    path = tmp_path_factory.mktemp("model") / name
    loaded = saved(model, path)
    assert_same_models(loaded, model)
    before = path.read_bytes()
    loaded.save_model(path)
    assert path.read_bytes() == before
    assert (before[:2] == b"\x1f\x8b") == name.endswith(".gz")


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_float32_numbers_are_written_short_and_come_back_to_the_bit(values):
    values = np.array(values, np.float32)
    back = np.array(json.loads(json.dumps(shortest(values))), np.float32)
    assert back.tobytes() == values.tobytes()
    assert [float(f"{x:.9g}") for x in shortest(values)] == shortest(values)  # 9 digits will do


def test_a_short_number_that_float64_would_spoil_is_written_long():
    value = np.array([0x15AE43FD], np.uint32).view(np.float32)
    assert np.float32(float(str(value[0]))) != value[0]  # rounded twice
    assert np.array(shortest(value), np.float32) == value


def test_a_trained_model_scores_the_same_from_its_file(tmp_path):
    table = small_table()
    dataset = ingest(table.drop(["w"]), label="y", verbose=0)
    model = train(dataset, n_estimators=20, verbose=0)
    # Where a category was not met, its bit and those above the last bin may be set.
    assert any(
        tree.mask.tobytes() != clean(tree, dataset.binning.features).mask.tobytes()
        for tree in model.trees
    )
    for part in (model, model.first(7)):
        loaded = saved(part, tmp_path / "m.json")
        assert loaded.n_trees == part.n_trees
        assert loaded.decision_function(table).tobytes() == part.decision_function(table).tobytes()
        assert repr(loaded) == repr(part)
    grown = loaded.with_tree(model.trees[7])
    assert (
        grown.decision_function(table).tobytes()
        == model.decision_function(table, n_trees=8).tobytes()
    )


def test_gzip_is_recognized_by_the_bytes_of_a_file(tmp_path):
    model = make_model(NUMBER, [make_stump(0, [0], 0.5, -0.5)])
    model.save_model(tmp_path / "m.json.gz")
    (tmp_path / "m.json.gz").rename(tmp_path / "m.json")
    assert_same_models(load_model(tmp_path / "m.json"), model)


def test_a_person_can_read_a_file(tmp_path):
    color = CategoryFeature("farbe", ("grün", "blau"))
    tree = make_stump(1, [1, 2], 0.1, -1 / 3)
    model = make_model(Binning((*NUMBER.features, color)), [tree], ("nein", "ja"))
    model.save_model(tmp_path / "m.json")
    version = f'"sparrowboost": "{sparrowboost.__version__}"'
    assert (tmp_path / "m.json").read_text() == (
        "{\n"
        '"format": "sparrow-model",\n'
        '"version": 2,\n'
        f"{version},\n"
        f'"digest": "{model.digest}",\n'
        '"loss": "logistic",\n'
        '"base_score": -0.25,\n'
        '"label": "label",\n'
        '"classes": ["nein", "ja"],\n'
        '"features": [\n'
        ' {"name": "x", "kind": "float64", "thresholds": [0.5, 1.5]},\n'
        ' {"name": "farbe", "kind": "category", "categories": ["grün", "blau"]}\n'
        "],\n"
        '"trees": [\n'
        ' {"feature": [1],\n'
        '  "goes_left": ["1,other"],\n'
        '  "left": [-1],\n'
        '  "right": [-2],\n'
        '  "value": [0.1, -0.33333334],\n'
        '  "gain": [1.0]}\n'
        "]\n"
        "}\n"
    )


@pytest.mark.skipif(not DOCS.exists(), reason="the docs are not beside the tests")
def test_the_file_in_the_docs_is_one_and_scores_as_they_say(tmp_path):
    example = DOCS.read_text().split("```json\n")[1].split("```")[0]
    (tmp_path / "m.json").write_text(example)
    model = load_model(tmp_path / "m.json")
    score = model.decision_function(pa.table({"age": [20.0], "color": ["green"]}))
    assert score == 2 * (np.float32(-0.25) + np.float32(0.1))
    model.save_model(tmp_path / "again.json")
    version = f'"sparrowboost": "{sparrowboost.__version__}"'
    again = (tmp_path / "again.json").read_text()
    assert again.replace(version, '"sparrowboost": "0.1.0"') == example


@pytest.mark.skipif(not DOCS.exists(), reason="the docs are not beside the tests")
def test_the_file_of_numbers_in_the_docs_predicts_as_they_say(tmp_path):
    example = DOCS.read_text().split("```json\n")[2].split("```")[0]
    (tmp_path / "m.json").write_text(example)
    model = load_model(tmp_path / "m.json")
    assert model.predict(pa.table({"age": [20.0]})) == pytest.approx(np.exp(5.5 + 0.4))
    model.save_model(tmp_path / "again.json")
    version = f'"sparrowboost": "{sparrowboost.__version__}"'
    again = (tmp_path / "again.json").read_text()
    assert again.replace(version, '"sparrowboost": "0.3.0"') == example


@pytest.mark.parametrize(
    "classes", [(0, 1), (False, True), (None, 3), (-0.5, 0.5), ("a", "b"), (float("-inf"), "inf")]
)
def test_labels_keep_their_types(tmp_path, classes):
    assert_same_models(
        saved(make_model(NUMBER, classes=classes), tmp_path / "m.json"),
        make_model(NUMBER, classes=classes),
    )


def test_labels_of_numpy_become_plain_ones(tmp_path):
    model = make_model(NUMBER, classes=(np.int64(2), np.float64(2.5)))
    assert [repr(label) for label in saved(model, tmp_path / "m.json").classes] == ["2", "2.5"]


# -- the first version, for ever ---------------------------------------------------------------


def v1_rows():
    """The rows that were scored when the file was written, and their scores H."""
    rows = json.loads((DATA / "model-v1-rows.json").read_text())
    columns = rows["columns"]
    for name in ("price", "ratio"):
        columns[name] = [float(x) if isinstance(x, str) else x for x in columns[name]]
    columns["when"] = [None if t is None else np.datetime64(t, "us") for t in columns["when"]]
    types = {
        "price": pa.float64(), "ratio": pa.float32(), "count": pa.int64(), "id": pa.uint64(),
        "when": pa.timestamp("us"), "empty": pa.null(), "color": pa.string(), "none": pa.string(),
    }  # fmt: skip
    table = pa.table({name: pa.array(columns[name], type_) for name, type_ in types.items()})
    return table, np.array(rows["scores"], np.float32)


def test_a_file_of_version_1_scores_as_it_did_when_it_was_written():
    # If this fails, files that people have are read wrongly: change the code, not the file.
    model = load_model(V1)
    assert (model.n_trees, model.classes, model.loss) == (5, (None, "ja"), "exponential")
    table, scores = v1_rows()
    assert len(np.unique(scores)) > 30
    assert model.decision_function(table).tobytes() == (2 * scores).tobytes()


def test_a_file_of_version_1_is_written_again_as_it_was(tmp_path):
    load_model(V1).save_model(tmp_path / "m.json")
    new, old = (json.loads(path.read_bytes()) for path in (tmp_path / "m.json", V1))
    assert new.pop("digest") == load_model(V1).digest
    assert {**new, "version": 1, "sparrowboost": old["sparrowboost"]} == old


# -- the digest --------------------------------------------------------------------------------


def rounded_model():
    """One with numbers and names of all sorts; leaf values whose digits all matter."""
    model = load_model(V1)
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, len(model.binning.features), n) for n in (1, 7, 15)]
    return make_model(model.binning, trees, ("nein", "ja"))


NUMBER_LOSSES = [
    SquaredError(), AbsoluteError(), Huber(0.1), Quantile(1 / 3), Poisson(), Gamma(), Tweedie(1.3),
]  # fmt: skip


def number_model(loss, base_score=-0.25):
    binning = load_model(V1).binning
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, len(binning.features), n) for n in (1, 7, 15)]
    model = Model(binning, (), loss.name, base_score, (), "price", loss.options)
    for tree in trees:
        model = model.with_tree(clean(tree, binning.features))
    return model


@pytest.mark.parametrize("name", ["m.json", "m.json.gz"])
def test_no_flipped_bit_gives_another_model(tmp_path, name):
    path, model, (rows, _) = tmp_path / name, rounded_model(), v1_rows()
    model.save_model(path)
    data, scores = path.read_bytes(), model.decision_function(rows).tobytes()
    refusals = Counter()
    for place in np.random.default_rng(1).choice(8 * len(data), 500, replace=False):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            loaded = load_model(path)
        except ModelFileError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
            refusals["digest" in str(error)] += 1
        else:
            assert loaded.decision_function(rows).tobytes() == scores
    assert refusals.total() > 400
    assert name.endswith(".gz") or refusals[True] > 50  # what only the digest can find


def test_every_bit_of_the_digest_and_its_key_counts(tmp_path):
    path = tmp_path / "m.json"
    rounded_model().save_model(path)
    data = path.read_bytes()
    start = data.index(b'"digest"')
    for place in range(8 * start, 8 * data.index(b",", start)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        if bytes(changed).split() != data.split():  # one blank is as good as another
            refused(tmp_path, bytes(changed), "cannot be read|not a known key|digest|key twice")


@given(models())
@settings(max_examples=40)
def test_the_digest_survives_tools_that_write_a_file_in_another_way(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("model") / "m.json"
    model.save_model(path)
    before = load_model(path)
    assert json.loads(path.read_bytes())["digest"] == before.digest == model.digest
    contents = json.loads(path.read_bytes())
    for more in ({"indent": 2, "sort_keys": True}, {"separators": (",", ":")}):
        path.write_text(json.dumps(contents, **more).replace("-0.0,", "-0,"))
        assert load_model(path).digest == before.digest


def test_an_edited_file_is_refused_until_the_line_of_its_digest_is_removed(tmp_path):
    path, model = tmp_path / "m.json", rounded_model()
    model.save_model(path)
    lines = path.read_text().replace('"nein"', '"nie"').splitlines(keepends=True)
    refused(tmp_path, "".join(lines).encode(), 'was edited; .* remove the line "digest"')
    path.write_text("".join(line for line in lines if not line.startswith('"digest"')))
    edited = load_model(path)
    assert edited.classes == ("nie", "ja") and edited.digest != model.digest


def naive_digest(contents):
    """The digest of a file's contents, by the words of docs/model-files.md."""
    types = {
        "float32": "<f4", "float64": "<f8", "int64": "<i8", "uint64": "<u8", "time": "<i8",
        "null": "<f8",
    }  # fmt: skip
    head = json.dumps([contents["label"], *contents["classes"]]).encode()
    parts = [contents["loss"].encode(), np.array(contents["base_score"], "<f8").tobytes(), head]
    for name, value in sorted(contents.get("loss_options", {}).items()):
        parts += [name.encode(), np.array(value, "<f8").tobytes()]
    if "offset" in contents:
        parts += [b"offset", json.dumps([contents["offset"]]).encode()]
    words = []
    for feature in contents["features"]:
        kind = feature["kind"]
        parts.append(json.dumps([feature["name"], kind]).encode())
        if kind == "category":
            n = len(feature["categories"])
            parts.append(json.dumps(feature["categories"]).encode())
            words.append({"other": n, "missing": n + 1})
        else:
            convert = float if "f" in types[kind] else int
            thresholds = [convert(x) for x in feature["thresholds"]]
            parts.append(np.array(thresholds, types[kind]).tobytes())
            words.append({"missing": len(thresholds) + 1})
    out = b"".join(len(part).to_bytes(8, "little") + part for part in [*parts, b"trees"])
    for tree in contents["trees"]:
        feature = np.array(tree["feature"], "<i4").tobytes()
        out += len(feature).to_bytes(8, "little") + feature
        for j, left in zip(tree["feature"], tree["goes_left"], strict=True):
            bins = np.zeros(256, np.uint8)
            for run in left.split(",") if left else ():
                low, _, high = str(words[j].get(run, run)).partition("-")
                bins[int(low) : int(high or low) + 1] = 1
            out += np.packbits(bins, bitorder="little").tobytes()
        children = zip(tree["right"], tree["left"], strict=True)
        out += np.array(list(children), "<i4").tobytes()
        out += np.array(tree["value"], "<f4").tobytes() + np.array(tree["gain"], "<f8").tobytes()
    return hashlib.sha256(out).hexdigest()


@pytest.mark.parametrize(
    "model",
    [
        load_model(V1),
        rounded_model(),
        number_model(Huber(0.1)),
        number_model(Gamma()),
        replace(rounded_model(), offset_name="prior"),
        replace(number_model(Gamma()), offset_name="größe"),
    ],
)
def test_the_digest_is_what_the_docs_say(tmp_path, model):
    path = tmp_path / "m.json"
    model.save_model(path)
    contents = json.loads(path.read_bytes())
    assert contents["digest"] == naive_digest(contents)


@pytest.mark.parametrize(
    "model", [rounded_model(), replace(number_model(Huber(0.1)), offset_name="prior")]
)
def test_whatever_a_file_says_is_part_of_its_digest(tmp_path, model):
    path = tmp_path / "m.json"
    model.save_model(path)
    contents = json.loads(path.read_bytes())
    version = contents["sparrowboost"]
    for way in places(contents):
        changed = copy.deepcopy(contents)
        *above, key = way
        part = eval_path(changed, above)
        if isinstance(part[key], str):
            part[key] += "x"
        elif isinstance(part[key], float):
            part[key] = 1.001 * part[key] + 0.001
        elif isinstance(part[key], int):
            part[key] += 1
        else:
            continue
        path.write_text(json.dumps(changed))
        if changed["sparrowboost"] != version:
            assert load_model(path).digest == model.digest
            continue
        with pytest.raises(ModelFileError):
            load_model(path)


# -- models of numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("loss", NUMBER_LOSSES, ids=lambda loss: loss.name)
def test_a_model_of_numbers_comes_back_to_the_bit(tmp_path, loss):
    model, (rows, _) = number_model(loss), v1_rows()
    loaded = saved(model, tmp_path / "m.json.gz")
    assert_same_models(loaded, model)
    assert loaded.regression == loss and loaded.label_name == "price"
    assert loaded.predict(rows).tobytes() == model.predict(rows).tobytes()
    assert loaded.digest == model.digest and repr(loaded) == repr(model)


def test_the_head_of_a_model_of_numbers(tmp_path):
    model = number_model(Tweedie(1.3))
    model.save_model(tmp_path / "m.json")
    head = (tmp_path / "m.json").read_text().split('"features"')[0]
    assert head == (
        "{\n"
        '"format": "sparrow-model",\n'
        '"version": 3,\n'
        f'"sparrowboost": "{sparrowboost.__version__}",\n'
        f'"digest": "{model.digest}",\n'
        '"loss": "tweedie",\n'
        '"loss_options": {"power": 1.3},\n'
        '"base_score": -0.25,\n'
        '"label": "price",\n'
        '"classes": [],\n'
    )


@pytest.mark.parametrize(
    ("where", "what", "match"),
    [
        ("version", 2, "has 'loss_options', which is not a known key"),
        ("loss", "logistic", "loss is 'logistic', which is none of squared_error, absolute_error"),
        ("loss", "poisson", "loss_options has 'power', which is not a known key"),
        ("loss", "quantile", "loss_options lacks 'alpha'"),
        ("loss_options", [], "loss_options is a list of 0 where power are needed"),
        ("loss_options", {"power": 2}, r"loss_options: power=2\.0: give a number above 1 and"),
        ("loss_options", {"power": "1.5"}, r"loss_options\.power is '1\.5' where a finite number"),
        ("classes", [0, 1], "classes has 2 labels where 0 are needed"),
        ("classes", {}, "classes is a dict of 0 where a list is needed"),
        ("loss_options", {"power": 1.4}, "do not match its digest"),
    ],
)
def test_a_file_that_is_no_model_of_numbers_is_refused(tmp_path, where, what, match):
    number_model(Tweedie(1.3)).save_model(tmp_path / "m.json")
    contents = json.loads((tmp_path / "m.json").read_bytes())
    refused(tmp_path, contents | {where: what}, match)


def test_numbers_cannot_have_the_losses_of_classes(tmp_path):
    refused(tmp_path, document() | {"loss": "poisson"}, "which is none of logistic, exponential")


# -- files that are no models ------------------------------------------------------------------


def document():
    return json.loads(V1.read_bytes())


def refused(tmp_path, what, match, name="m.json"):
    path = tmp_path / name
    path.write_bytes(what if isinstance(what, bytes) else json.dumps(what).encode())
    with pytest.raises(ModelFileError, match=match) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and message.endswith(".")
    assert "\n" not in message and len(message) < 400
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


CHANGES = [
    # where, what to put there, what the message says
    ("format", "sparrow-store", "not a Sparrow model"),
    ("version", 3, "lacks 'loss_options'"),
    ("version", 4, "loss is 'exponential', which is none of softmax"),
    ("version", 5, "lacks 'offset'"),
    ("version", 7, r"has version 7, written by sparrowboost '.*'; .* update sparrowboost"),
    ("version", 10**30, "has version 1000"),
    ("version", 0, "version is 0"),
    ("version", True, "version is True"),
    ("version", "1", "version is '1'"),
    ("sparrowboost", 1, "sparrowboost is 1 where text"),
    ("loss", "square", "loss is 'square', which is none of logistic, exponential"),
    ("loss", ["logistic"], "loss is a list of 1"),
    ("more", 1, "the file has 'more', which is not a known key"),
    ("base_score", "0.5", "base_score is '0.5'"),
    ("base_score", True, "base_score is True"),
    ("base_score", None, "base_score is None"),
    ("base_score", 2**54, "base_score is 18014398509481984"),
    ("base_score", 1e39, "does not fit a float32"),
    ("classes", [1], "classes has 1 labels"),
    ("classes", [1, 1.0], "which is one"),
    ("classes", [0, None], "which is one"),
    ("classes", "ab", "classes is 'ab'"),
    ("classes", [0, []], r"classes\[1\] is a list of 0"),
    ("classes", [0, 2**64], r"classes\[1\] is 18446744073709551616"),
    ("classes", [0, {"float": "nan"}], "neither 'inf' nor '-inf'"),
    ("classes", [0, {"float": ["inf"]}], "neither 'inf' nor '-inf'"),
    ("classes", [0, {"int": "inf"}], r"classes\[1\] lacks 'float'"),
    ("classes", ["\ud800", 1], "not valid text"),
    ("features", [], "no features"),
    ("features", {}, "features is a dict of 0 where a list"),
    ("features.0", 5, r"features\[0\] is of kind None"),
    ("features.0.kind", "float16", "kind 'float16', which is not known"),
    ("features.0.kind", ["x"], "kind a list of 1"),
    ("features.0.kind", "category", r"features\[0\] lacks 'categories'"),
    ("features.0.name", "ratio", "features has 'ratio' twice"),
    ("features.0.name", 7, r"features\[0\].name is 7"),
    ("features.0.name", "\udfff", "not valid text"),
    ("features.0.thresholds", None, "is None where a list"),
    ("features.0.thresholds", [0.5, 0.5], "do not ascend"),
    ("features.0.thresholds", [-0.0, 0.0], "do not ascend"),
    ("features.0.thresholds", [1, 0], "do not ascend"),
    ("features.0.thresholds", ["inf", "-inf"], "do not ascend"),
    ("features.0.thresholds", ["nan"], "neither 'inf' nor '-inf'"),
    ("features.0.thresholds", ["1.5"], "neither 'inf' nor '-inf'"),
    ("features.0.thresholds", [False, True], "is False where a finite number"),
    ("features.0.thresholds", [[1]], r"thresholds\[0\] is a list of 1"),
    ("features.0.thresholds", [10**400], "is 1000.* where a finite number"),
    ("features.0.thresholds", list(range(255)), "has 255 items, more than 254"),
    ("features.1.thresholds", [0.1], "0.1, which is not a float32"),
    ("features.1.thresholds", [1e39], r"1e\+39, which is not a float32"),
    ("features.2.thresholds", [0.5], "is 0.5 where an integer"),
    ("features.2.thresholds", [True], "is True where an integer"),
    ("features.2.thresholds", ["inf"], "is 'inf' where an integer"),
    ("features.2.thresholds", [2**63], "is 9223372036854775808 where an integer"),
    ("features.3.thresholds", [-1], "is -1 where an integer"),
    ("features.3.thresholds", [2**64], "where an integer"),
    ("features.6.categories", ["a", "b", "a"], "categories has 'a' twice"),
    ("features.6.categories", ["a", 1], r"categories\[1\] is 1"),
    ("features.6.categories", ["a", "\ud800"], "not valid text"),
    ("features.6.categories", [str(i) for i in range(255)], "has 255 items, more than 254"),
    ("trees", {}, "trees is a dict of 0"),
    ("trees.0", [], r"trees\[0\] is a list of 0 where feature, .* are needed"),
    ("trees.0.more", [], r"trees\[0\] has 'more'"),
    ("trees.0.feature", 0, r"trees\[0\].feature is 0 where a list"),
    ("trees.0.feature", [0], "goes_left has 4 items where 1 are needed"),
    ("trees.0.feature.1", 8, r"feature\[1\] is 8 where an integer from 0 to 7"),
    ("trees.0.feature.1", -1, r"feature\[1\] is -1"),
    ("trees.0.feature.1", 1.0, r"feature\[1\] is 1.0"),
    ("trees.0.feature.1", True, r"feature\[1\] is True"),
    ("trees.0.goes_left.0", 15, "is 15 where text"),
    ("trees.0.goes_left.0", "0-9", "'price' has no bin 9"),
    ("trees.0.goes_left.0", "999", "'price' has no bin 999"),
    ("trees.0.goes_left.0", "other", "not a list of bins"),
    ("trees.0.goes_left.1", "5", "'color' has no bin 5"),
    ("trees.0.goes_left.0", "0,", "not a list of bins"),
    ("trees.0.goes_left.0", "0 ", "not a list of bins"),
    ("trees.0.goes_left.0", "٣", "not a list of bins"),
    ("trees.0.goes_left.0", "-1", "not a list of bins"),
    ("trees.0.goes_left.0", "1" * 5000, r"'1+\.\.\., which is not a list"),
    ("trees.0.goes_left.0", "3-2", "bins do not ascend"),
    ("trees.0.goes_left.0", "1,1", "bins do not ascend"),
    ("trees.0.goes_left.0", "missing,1", "bins do not ascend"),
    ("trees.0.left.0", 0, r"left\[0\] is 0, which leads back"),
    ("trees.0.left.3", 1, r"left\[3\] is 1, which leads back"),
    ("trees.0.left.0", 4, r"left\[0\] is 4 where an integer from -5 to 3"),
    ("trees.0.left.1", -6, r"left\[1\] is -6 where"),
    ("trees.0.left.1", -(10**30), r"left\[1\] is -1000"),
    ("trees.0.left.0", 2, "not the child of exactly one split"),
    ("trees.0.left.1", -2, "not the child of exactly one split"),
    ("trees.0.right.1", False, r"right\[1\] is False"),
    ("trees.0.value", [0.0] * 4, "value has 4 items where 5 are needed"),
    ("trees.0.value.2", 1e39, "too large for a float32"),
    ("trees.0.value.2", 3e38, "does not fit a float32"),
    ("trees.0.value.2", "1", r"value\[2\] is '1'"),
    ("trees.0.value.2", None, r"value\[2\] is None"),
    ("trees.0.gain.0", False, r"gain\[0\] is False"),
    ("trees.0.gain.0", [], r"gain\[0\] is a list of 0"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "what", "match"), CHANGES)
def test_what_is_not_a_model_is_refused_in_one_line(tmp_path, where, what, match):
    changed = document()
    *way, last = [int(key) if key.isdigit() else key for key in where.split(".")]
    part = changed
    for key in way:
        part = part[key]
    part[last] = what
    refused(tmp_path, changed, match)


def test_every_key_is_needed(tmp_path):
    for where in ((), ("features", 0), ("features", 6), ("trees", 0)):
        for key in eval_path(document(), where):
            changed = document()
            del eval_path(changed, where)[key]
            refused(tmp_path, changed, "lacks|not a Sparrow model|version is None|kind None")


def eval_path(tree, way):
    for key in way:
        tree = tree[key]
    return tree


def test_a_threshold_of_minus_zero_is_zero(tmp_path):
    changed = document()
    changed["features"][0]["thresholds"], changed["trees"] = [-1.5, -0.0, 2], []
    (tmp_path / "m.json").write_text(json.dumps(changed))
    thresholds = load_model(tmp_path / "m.json").binning.features[0].thresholds
    assert thresholds.tolist() == [-1.5, 0.0, 2.0] and not np.signbit(thresholds[1])


def test_numbers_that_json_cannot_express_are_refused(tmp_path):
    text = V1.read_bytes()
    for word in (b"NaN", b"Infinity", b"-Infinity"):
        refused(tmp_path, text.replace(b"12.5", word), f"has {word.decode()} where a finite")
    refused(tmp_path, text.replace(b"12.5", b"1e999"), "is inf where a finite number")
    refused(tmp_path, text.replace(b"12.5", b"9" * 5000), "digits")
    refused(tmp_path, text.replace(b"12.5", b"9" * 400), "is 999.* where a finite number")


def test_a_duplicate_key_is_refused(tmp_path):
    text = V1.read_bytes()
    refused(tmp_path, text.replace(b'"version": 1,', b'"version": 1,\n"version": 1,'), "key twice")


@pytest.mark.parametrize(
    "what",
    [b"", b"{", b"null", b"[]", b"\xff\xfe{}", b"\x80abc", b"PK\x03\x04", b"\0" * 100, b'""'],
)
def test_other_kinds_of_files_are_refused(tmp_path, what):
    refused(tmp_path, what, "cannot be read|not a Sparrow model")


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path):
    text = V1.read_bytes().rstrip()
    packed = gzip.compress(text)
    for part in np.linspace(0, 1, 40, endpoint=False):
        refused(tmp_path, text[: int(part * len(text))], "cannot be read")
        refused(tmp_path, packed[: int(part * len(packed))], "cannot be (read|decompressed)")


def test_a_compressed_file_whose_bytes_changed_is_refused(tmp_path):
    packed = bytearray(gzip.compress(V1.read_bytes(), mtime=0))
    for place in range(2, len(packed), 97):
        changed = packed.copy()
        changed[place] ^= 0xFF
        if 3 < place < 10:  # when and where it was packed: nobody cares
            continue
        refused(tmp_path, bytes(changed), "cannot be|not a Sparrow model|key twice")


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"format": "sparrow-model", "trees": [['])
def test_deep_nesting_is_refused(tmp_path, opening):
    refused(tmp_path, opening * 100_000, "nested too deeply")
    refused(tmp_path, opening * 4_100_000, "more than 4 MB .* besides its features and trees")


def test_decompression_stops_at_the_size_limit(tmp_path, monkeypatch):
    set_constants(monkeypatch, model_file_bytes=1_000_000)
    for bomb in (gzip.compress(b" " * (50 << 20)), b" " * (2 << 20)):
        refused(tmp_path, bomb, "more than 1 MB of text")
    model = load_model(V1)
    set_constants(monkeypatch, model_file_bytes=1_000)
    with pytest.raises(ModelFileError, match=r"cannot be saved: it has more than"):
        model.save_model(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize(
    ("start", "piece", "end", "match"),
    [
        (b"[", b"[],", b"0]", "besides its features"),
        (b'{"trees": [', b"{},", b"{}]}", "more than 20,000 trees"),
        (b'{"trees": [{"value": [', b"[],", b"0]}]}", r"trees\[0\] .* longer than 10 MB"),
        (b'{"trees": [{"value": [', b"0.5,", b"0]}]}", r"trees\[0\] .* longer than 10 MB"),
        (b'{"features": [{}, {"name": "', b"a", b'"}]}', r"features\[1\] .* longer than 10 MB"),
        (b'{"classes": [{"trees": [', b"{},", b"{}]}]}", "more than 20,000 trees"),
        (b'{"a": "', b" ", b'"}', "besides its features"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_would_take_much_memory_once_parsed_is_refused(
    tmp_path, monkeypatch, start, piece, end, match, packed
):
    set_constants(monkeypatch, model_items=20_000, model_item_bytes=10_000_000)
    data = start + piece * (20_000_000 // len(piece)) + end
    what = gzip.compress(data) if packed else data
    tracemalloc.start()
    try:
        refused(tmp_path, what, "100 times as long" if packed else match)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(data)


def test_a_list_of_lists_within_a_tree_is_refused_before_it_is_parsed(tmp_path):
    tree = document()["trees"][0] | {"value": [[]] * 1_500_000}
    refused(tmp_path, document() | {"trees": [tree]}, "more than 1,000 lists in a feature or a")


def test_a_large_model_is_read_like_a_small_one(tmp_path, monkeypatch):
    model, name = rounded_model(), 'a "features": [{}] \\'
    odd = CategoryFeature(name, ("{", '"}', "\\", "[[", '"trees": [{}]'))
    model = make_model(Binning((odd, *model.binning.features)), model.trees, ("{[", '"trees":['))
    model.save_model(tmp_path / "m.json")
    before = load_model(tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    turned = json.dumps(dict(reversed(json.loads(text).items())), indent=1)  # trees come first
    set_constants(monkeypatch, parsed_at_once=700)
    for written in (text, turned):
        (tmp_path / "m.json").write_text(written)
        assert_same_models(load_model(tmp_path / "m.json"), before)
    for part in np.linspace(0, 1, 40, endpoint=False):
        data = text[: int(part * len(text))].encode()
        refused(tmp_path, data, "cannot be read|is cut off|besides its features")


def test_folders_pipes_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"nothing\.json: no such file"):
        load_model(tmp_path / "nothing.json")
    with pytest.raises(ModelFileError, match="not a regular file"):
        load_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="pipe: not a regular file"):
        load_model(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_model(V1 / "more")
    with pytest.raises(ModelFileError, match="null"):
        load_model("a\0b")


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    def denied(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(sparrowboost.model.file, "open", denied, raising=False)
    with pytest.raises(ModelFileError, match=r"model-v1\.json: cannot be read \(Permission denied"):
        load_model(V1)


def test_the_error_is_one_of_sparrows_and_of_the_systems():
    assert issubclass(ModelFileError, SparrowError) and issubclass(ModelFileError, OSError)


# -- saving ------------------------------------------------------------------------------------


def test_a_model_is_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    path, old = tmp_path / "m.json", make_model(NUMBER, classes=("old", "one"))
    old.save_model(path)
    new = make_model(NUMBER, [make_stump(0, [0], 1, 2)])
    with monkeypatch.context() as patch:

        def full(file):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFullError, match=r"m\.json: the disk is full: .* bytes\) needed"):
            new.save_model(path)
    assert os.listdir(tmp_path) == ["m.json"]
    assert_same_models(load_model(path), old)
    with monkeypatch.context() as patch:

        def interrupted(file):
            raise KeyboardInterrupt

        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            new.save_model(path)
    assert os.listdir(tmp_path) == ["m.json"]
    new.save_model(path)
    assert os.listdir(tmp_path) == ["m.json"]
    assert_same_models(load_model(path), new)


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    model = make_model(NUMBER)
    with pytest.raises(ModelFileError, match=r"no/m\.json: cannot be written \(No such file"):
        model.save_model(tmp_path / "no" / "m.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelFileError, match=r"folder: cannot be written \(Is a directory"):
        model.save_model(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (make_model(NUMBER, base_score=float("nan")), "NaN"),
        (make_model(NUMBER, base_score=float("inf")), "Infinity"),
        (make_model(NUMBER, [make_stump(0, [0], float("nan"), 0)]), "NaN"),
        (make_model(NUMBER, classes=(date(2024, 1, 1), 1)), "datetime.date"),
        (make_model(NUMBER, classes=(1, 1)), "which is one"),
        (make_model(NUMBER, loss="mine"), "'mine'"),
        (make_model(Binning(NUMBER.features * 2)), "'x' twice"),
        (make_model(Binning((CategoryFeature("\ud800", ()),))), "not valid text"),
        (make_model(Binning((NumberFeature("x", "float64", np.array([np.nan])),))), "nan"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, model, match):
    with pytest.raises(ModelFileError, match=f"cannot be saved: .*{match}"):
        model.save_model(tmp_path / "m.json")
    assert os.listdir(tmp_path) == []


# -- anything ----------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-10, 300), st.integers(), st.floats(), st.text(),
    st.sampled_from(["inf", "-inf", "missing", "other", "0-3", "1,2,missing", "category", "time"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def places(part, way=()):
    """The way to each part of a document."""
    if isinstance(part, dict | list):
        for key in part if isinstance(part, dict) else range(len(part)):
            yield (*way, key)
            yield from places(part[key], (*way, key))


PLACES = list(places(document()))


def assert_sound(model):
    """Whatever was loaded scores rows of its own features, and points nowhere else."""
    features, columns = model.binning.features, {}
    for tree in model.trees:
        k = len(tree.feature)
        assert len(tree.value) == k + 1 and tree.child.shape == (k, 2)
        assert ((tree.feature >= 0) & (tree.feature < len(features))).all()
        children = sorted(tree.child.ravel().tolist())
        assert children == (sorted([*range(1, k), *range(-k - 1, 0)]) if k else [])
        assert all(c < 0 or c > i for i, pair in enumerate(tree.child.tolist()) for c in pair)
    for feature in features:
        if isinstance(feature, CategoryFeature):
            columns[feature.name] = pa.array([*feature.categories[:1], "?", None][-2:], pa.string())
        else:
            type_ = pa.timestamp("us") if feature.kind == "time" else pa.float64()
            columns[feature.name] = pa.array([0, None], type_)
    scores = model.decision_function(pa.table(columns), n_jobs=1)
    assert scores.shape == (2,) and np.isfinite(scores).all()


def load_or_refuse(path):
    try:
        model = load_model(path)
    except ModelFileError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    else:
        assert_sound(model)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150)
def test_a_document_changed_anywhere_is_refused_or_a_model(tmp_path_factory, data):
    changed = document()
    for _ in range(data.draw(st.integers(1, 3))):
        *way, key = data.draw(st.sampled_from(PLACES))
        try:
            part = eval_path(changed, way)
            what = data.draw(st.sampled_from(["replace", "remove", "copy", "nudge"]))
            if what == "replace":
                part[key] = data.draw(values)
            elif what == "remove":
                del part[key]
            elif what == "copy":
                part[key] = copy.deepcopy(eval_path(changed, data.draw(st.sampled_from(PLACES))))
            else:
                part[key] += data.draw(st.sampled_from([-1, 1]))
        except (KeyError, IndexError, TypeError):  # changed before: there is no such place now
            continue
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(changed))
    load_or_refuse(path)


@given(st.data(), st.booleans())
@settings(max_examples=100)
def test_bytes_changed_anywhere_are_refused_or_a_model(tmp_path_factory, data, packed):
    text = V1.read_bytes()
    changed = bytearray(gzip.compress(text, mtime=0) if packed else text)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(changed)))
        stop = start + data.draw(st.integers(0, 3))
        changed[start:stop] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"9", b"-", b"1e", b",", b'"', b"]", b"null"])
        )
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(bytes(changed))
    load_or_refuse(path)
