"""Hot loops: numba functions on plain arrays, each file standing alone."""
