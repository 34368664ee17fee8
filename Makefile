# Two commands for a fresh machine: `make demo` and `make test`. Both need python3 (3.11 or newer)
# and a package index, nothing else; everything goes into .venv. CONTRIBUTING.md has the others.

PYTHON ?= python3
BIN := .venv/bin

# Tests run in parallel. A worker takes about 700 MB. Each core has one, so threads of libraries
# should not wait for work by keeping a core busy: XGBoost's and scikit-learn's (OpenMP), and numpy's
# (OpenBLAS). Arrow's and Sparrow's do not.
WORKERS ?= auto
PYTEST := OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist worksteal
DOCS_TESTS := tests/test_docs.py tests/benchmarks

# Some images set it. Then each worker, and each of some hundred processes that tests start, would
# compile the Python of tests and package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast check kernels docs docs-check \
	bench bench-full bench-ingest bench-learner clean

demo: .venv/installed
	$(BIN)/sparrow demo

test: .venv/installed-test check .venv/compiled kernels
	$(PYTEST) --doctest-modules $(DOCS_TESTS:%=--ignore=%)

# For the inner loop: everything but the slowest tests, without checks of style and types.
test-fast: .venv/installed-test .venv/compiled
	$(PYTEST) -m "not slow" $(DOCS_TESTS:%=--ignore=%)

check: .venv/installed-test
	$(BIN)/ruff check src tests benchmarks examples docs/*.py
	$(BIN)/ruff format --check src tests benchmarks examples docs/*.py
	$(BIN)/mypy
	$(BIN)/lint-imports

# Once more with bounds checks, in a cache of its own: compiled code with and without is not mixed.
kernels: .venv/installed-test
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.venv/numba-boundscheck \
		$(PYTEST) -q -m kernel tests/kernels tests/readers

# Most kernels are compiled before the tests, in two processes. Each worker would compile them all.
.venv/compiled: .venv/installed-test $(wildcard src/sparrowboost/kernels/*.py)
	$(BIN)/python -c "from sparrowboost.learner.warm_up import warm_up; warm_up()" & \
	$(BIN)/python -c "from sparrowboost.store.warm_up import WORK_DTYPES, warm_up; warm_up(WORK_DTYPES)" & \
	wait
	touch $@

# Do the pages match the code and the measurements? Does the site build, with every link intact?
docs-check: .venv/installed-test .venv/installed-bench docs
	$(PYTEST) $(DOCS_TESTS)

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench-ingest: .venv/installed-bench
	$(BIN)/python benchmarks/bench_ingest.py --rounds 5
	$(BIN)/python benchmarks/bench_ingest.py --flat

# Who reaches which test loss when: docs/benchmarks.md. Needs ../shared/data, a quarter of an hour on
# 2 quiet cores, 2 GB of disk, and for memory caps the right to make a cgroup.
BENCH := $(BIN)/python benchmarks/bench.py
QUICK := --rates 0.3 --cap 60

bench: .venv/installed-bench
	$(BENCH) --task splice $(QUICK) --trees 1000 --only sparrow lightgbm lightgbm-rare
	$(BENCH) --task table10m --memory 1GB $(QUICK) --only sparrow xgboost xgboost-ext lightgbm lightgbm-sub
	$(BENCH) --task table10m $(QUICK) --cap 90 --only sparrow xgboost lightgbm
	$(BENCH) --task covertype $(QUICK) --only sparrow xgboost lightgbm
	$(BENCH) --task flights $(QUICK) --trees 200 --only sparrow xgboost lightgbm histgb
	$(BIN)/python benchmarks/bench_report.py

# All tasks, memory caps and contestants: about a day, and 30 GB of disk.
bench-full: .venv/installed-bench
	$(BENCH) --task covertype flights flights-mixed
	for memory in 300MB 512MB 1GB 2GB none; do \
		$(BENCH) --task splice table10m table10m-31 --memory $$memory || exit 1; done
	$(BENCH) --task table50m bathymetry --memory 300MB --rates 0.3 --cap 1200 \
		--only sparrow xgboost-ext lightgbm-sub
	for memory in 1GB 3GB none; do \
		$(BENCH) --task table50m bathymetry --memory $$memory --rates 0.3 --cap 1200 || exit 1; done
	$(BIN)/python benchmarks/bench_report.py

# Needs ../shared/data, two hours, and a quiet machine.
bench-learner: .venv/installed-bench
	$(BIN)/python benchmarks/bench_rooms.py --task table10m splice covertype flights-mixed
	$(BIN)/python benchmarks/bench_scan.py
	$(BIN)/python benchmarks/bench_predict.py --rounds 1 --rows 300000
	$(BIN)/python benchmarks/bench_small.py --seeds 3
	$(BIN)/python benchmarks/bench_defaults.py
	$(BIN)/python benchmarks/bench_covertype.py --rate 0.3 --seeds 8
	$(BIN)/python benchmarks/bench_categories.py
	$(BIN)/python benchmarks/bench_categories.py --task splice
	$(BIN)/python benchmarks/bench_sparse.py
	$(BIN)/python benchmarks/bench_sparse.py --task fields

.venv/created:
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: .venv/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/installed-test: .venv/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ .venv/installed

.venv/installed-docs: .venv/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@ .venv/installed

.venv/installed-bench: .venv/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@ .venv/installed

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
