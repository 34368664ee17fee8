"""Wide and sparse tables: Sparrow against LightGBM and XGBoost.

    python benchmarks/bench_sparse.py                                  -> results/sparse.json
    python benchmarks/bench_sparse.py --task fields                    -> results/sparse_fields.json
    python benchmarks/bench_sparse.py --rows 20000 --columns 50000 --trees 10 --out x.json  (smoke)

    words     made documents: log-normal lengths, words by Zipf's law, how often each is there
    fields    made events: fields of 1,000 values each, as many as a row has entries, each value a
              column of its own (one-hot), by Zipf's law

A third of the columns have effects, which add up to the log odds; the loss of the true
probabilities is in the results ("oracle"). Each contestant runs in a process of its own, loading
included:

    sparrow           from a libsvm file, in a memory limit
    sparrow-matrix    from a matrix of scipy's in memory, in the same limit beside it
    lightgbm          from that matrix
    xgboost           from that matrix, trees by histograms, of as many leaves

Trees, leaves and learning rates are equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
from rich.console import Console

import measure
from bench_categories import LEAVES, lightgbm_of, log_loss, show, summarize, trained

RESULTS = Path(__file__).parent / "results"
TEST_ROWS = 100_000
CONTESTANTS = ("sparrow", "sparrow-matrix", "lightgbm", "xgboost")
PACKAGES = ("sparrowboost", "lightgbm", "xgboost", "scipy", "numpy")
PIECE_ROWS = 20_000  # made and written together
STEEPNESS = 0.9  # of Zipf's law: the k-th most frequent word has k**-0.9 of the first one's rows
SPREAD = 0.7  # standard deviation of the logarithm of a document's length
FIELD_VALUES = 1_000
WITH_EFFECT = 1 / 3  # of the columns
SIGNAL = 1.5  # standard deviation of the log odds


# -- tables ---------------------------------------------------------------------------------------


class Maker:
    """Makes rows of a table of so many columns and entries.

    Parameters
    ----------
    task : {"words", "fields"}
    columns : int
    entries : int
        Of a row, on average.
    """

    def __init__(self, task: str, columns: int, entries: int) -> None:
        fixed = np.random.default_rng(7)
        self._task, self._columns, self._entries = task, columns, entries
        self._order = fixed.permutation(columns)
        own = FIELD_VALUES if task == "fields" else columns
        self._share = np.cumsum(np.arange(1, own + 1) ** -STEEPNESS)
        self._share /= self._share[-1]
        self._effect = fixed.normal(size=columns) * (fixed.random(columns) < WITH_EFFECT)
        self._scale, self._middle = 1.0, 0.0
        score = self._score(self._rows(PIECE_ROWS, fixed))
        self._scale, self._middle = SIGNAL / score.std(), score.mean()

    def _rows(self, n: int, rng: np.random.Generator) -> sp.csr_matrix:
        if self._task == "fields":
            start = np.arange(n + 1) * self._entries
            field = np.tile(np.arange(self._entries), n)
            drawn = self._draw(len(field), rng)
            column = (field * FIELD_VALUES + drawn) % self._columns
        else:
            mean = np.log(self._entries) - SPREAD**2 / 2
            start = np.append(0, np.cumsum(1 + rng.lognormal(mean, SPREAD, n).astype(np.int64)))
            column = self._draw(int(start[-1]), rng)
        rows = sp.csr_matrix(
            (np.ones(len(column), np.float32), self._order[column], start), (n, self._columns)
        )
        rows.sum_duplicates()
        return rows

    def _draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return np.minimum(np.searchsorted(self._share, rng.random(n)), len(self._share) - 1)

    def _score(self, rows: sp.csr_matrix) -> np.ndarray:
        return self._scale * (rows @ self._effect - self._middle)

    def piece(self, n: int, rng: np.random.Generator) -> tuple[sp.csr_matrix, np.ndarray, float]:
        """Rows, their labels, and the mean loss of their true probabilities."""
        rows = self._rows(n, rng)
        p = 1 / (1 + np.exp(-self._score(rows)))
        y = (rng.random(n) < p).astype(np.int8)
        return rows, y, log_loss(y, p)


def make_files(folder: Path, job: dict[str, Any], seed: int) -> dict[str, Any]:
    """The training table as libsvm file and as matrix, the test table as matrix."""
    maker, rng = Maker(job["task"], job["columns"], job["entries"]), np.random.default_rng(seed)
    stem = f"sparse-{job['task']}-{job['rows']}-{job['columns']}-{seed}"
    text, train, test = (folder / f"{stem}{end}" for end in (".svm", ".npz", "-test.npz"))
    parts, labels = [], []
    with open(text, "wb") as file:
        for first in range(0, job["rows"], PIECE_ROWS):
            rows, y, _ = maker.piece(min(PIECE_ROWS, job["rows"] - first), rng)
            parts.append(rows)
            labels.append(y)
            file.write(lines_of(rows, y))
    save(train, sp.vstack(parts, format="csr"), np.concatenate(labels))
    rows, y, oracle = maker.piece(min(TEST_ROWS, job["rows"]), rng)
    save(test, rows, y)
    return {"text": str(text), "train": str(train), "test": str(test), "oracle": oracle}


def lines_of(rows: sp.csr_matrix, y: np.ndarray) -> bytes:
    """Rows in libsvm's format."""
    index = pa.array(rows.indices + 1).cast(pa.string())
    value = pa.array(rows.data.astype(np.int32)).cast(pa.string())
    pairs = pc.binary_join_element_wise(index, value, ":")
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(rows.indptr), pairs), " ")
    lines = pc.binary_join_element_wise(pa.array(y).cast(pa.string()), joined, " ")
    return ("\n".join(lines.to_pylist()) + "\n").encode()


def save(path: Path, rows: sp.csr_matrix, y: np.ndarray) -> None:
    arrays = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr}
    np.savez(path, **arrays, y=y, columns=rows.shape[1])


def load(path: str) -> tuple[sp.csr_matrix, np.ndarray]:
    with np.load(path) as file:
        y, columns = file["y"], int(file["columns"])
        parts = file["data"], file["indices"], file["indptr"]
    return sp.csr_matrix(parts, (len(y), columns)), y


# -- one run, in a process of its own -------------------------------------------------------------

Predict = Callable[[sp.csr_matrix], np.ndarray]


def run_child(job: dict[str, Any]) -> dict[str, Any]:
    """Train, then measure on the test rows; seconds do not include that."""
    return trained(LIBRARIES[job["contestant"]], job, load)


def sparrow_of(job: dict[str, Any], data: Any, label: Any) -> Predict:
    import sparrowboost

    how = {"memory_limit": job["memory"], "random_state": job["seed"], "verbose": 0}
    model = sparrowboost.train(
        sparrowboost.ingest(data, label=label, **how),
        n_estimators=job["trees"],
        max_leaves=LEAVES,
        learning_rate=job["rate"],
        **how,
    )
    names = model.feature_names
    first = data is job["text"]  # whose columns count from 1
    assert not first or "f0" not in names

    def predict(rows: sp.csr_matrix) -> np.ndarray:
        if first:
            rows = sp.hstack((sp.csr_matrix((rows.shape[0], 1)), rows), format="csr")
        return model.predict_proba(rows)[:, 1]

    return predict


def sparrow(job: dict[str, Any]) -> Predict:
    return sparrow_of(job, job["text"], None)


def sparrow_matrix(job: dict[str, Any]) -> Predict:
    return sparrow_of(job, *load(job["train"]))


def lightgbm(job: dict[str, Any]) -> Predict:
    return lightgbm_of(job, *load(job["train"]), []).predict


def xgboost(job: dict[str, Any]) -> Predict:
    import xgboost as xgb

    rows, y = load(job["train"])
    params = {
        "objective": "binary:logistic",
        "learning_rate": job["rate"],
        "tree_method": "hist",
        "grow_policy": "lossguide",
        "max_leaves": LEAVES,
        "max_depth": 0,
        "nthread": measure.cores(),
        "seed": job["seed"],
        "verbosity": 0,
    }
    booster = xgb.train(params, xgb.QuantileDMatrix(rows, y), job["trees"])
    return lambda test: booster.predict(xgb.DMatrix(test))


LIBRARIES: dict[str, Callable[[dict[str, Any]], Predict]] = {
    "sparrow": sparrow,
    "sparrow-matrix": sparrow_matrix,
    "lightgbm": lightgbm,
    "xgboost": xgboost,
}


# -- the parent -----------------------------------------------------------------------------------


def means(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The means over seeds, by contestant."""
    return {
        name: {key: float(np.mean(values)) for key, values in of.items()}
        for name, of in summarize(runs).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", choices=("words", "fields"), default="words")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=100, help="of a row, on average")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS)
    parser.add_argument("--data", type=Path, default=Path("/tmp/sparrow-bench"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        sys.stdout.write(json.dumps(run_child(json.loads(args.child))) + "\n")
        return
    console = Console()
    table = {key: getattr(args, key) for key in ("task", "rows", "columns", "entries")}
    how = {"trees": args.trees, "rate": args.rate, "memory": args.memory}
    args.data.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed in range(args.seeds):
        files = make_files(args.data, table, seed)
        oracle = files.pop("oracle")
        console.print(f"seed {seed}: the oracle's log loss is {oracle:.5f}")
        for contestant in args.only or CONTESTANTS:
            job = {"contestant": contestant, "seed": seed, **how}
            found = measure.run_child([__file__, "--child", json.dumps({**job, **files})])
            runs.append({**job, **found, "oracle": oracle})
            console.print(seed, contestant, f"{found['seconds']:.1f} s", f"{found['loss']:.5f}")
        for path in files.values():
            Path(path).unlink()
    show(summarize(runs), console)
    name = "sparse.json" if args.task == "words" else f"sparse_{args.task}.json"
    about = {
        "command": measure.command(),
        "commit": measure.commit(),
        "machine": measure.machine(PACKAGES),
        **table,
        **how,
    }
    measure.write_json(args.out or RESULTS / name, {**about, "runs": runs, "summary": means(runs)})


if __name__ == "__main__":
    main()
