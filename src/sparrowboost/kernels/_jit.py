"""The one way in which Sparrow compiles a kernel."""

from __future__ import annotations

from numba import njit

# nogil: kernels run under plain threads. cache: a second process does not compile again.
# error_model: a division by zero is inf or nan as in numpy, and costs no branch.
kernel = njit(nogil=True, cache=True, error_model="numpy")
