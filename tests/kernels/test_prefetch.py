from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from sparrowboost.kernels._jit import kernel
from sparrowboost.kernels.prefetch import prefetch

pytestmark = pytest.mark.kernel


@kernel
def ask(values, table, k):
    prefetch(values, k)
    prefetch(table, (k, k))
    return prefetch(values, k)


@pytest.mark.parametrize("run", [ask, ask.py_func])
@pytest.mark.parametrize("step", [1, 2])  # arrays in one piece, and not
def test_a_hint_changes_nothing(run, step):
    values, table = np.arange(10.0)[::step], np.arange(100, dtype=np.uint8).reshape(10, 10)[::step]
    before = values.copy(), table.copy()
    for k in range(len(values)):
        assert run(values, table, np.uint64(k)) is None
    np.testing.assert_array_equal(values, before[0])
    np.testing.assert_array_equal(table, before[1])


def test_the_hint_is_in_the_machine_code():
    compiled = njit(ask.py_func)  # what comes from a cache has no code to inspect
    compiled(np.arange(3.0), np.zeros((3, 3), np.uint8), np.uint64(1))
    assert all("llvm.prefetch" in code for code in compiled.inspect_llvm().values())
