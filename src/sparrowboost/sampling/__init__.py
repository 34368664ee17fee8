"""A sample in memory, drawn by weight, and when the next one is due.

`strata` owns the file of weighed rows, `sampler` draws from it and from the store, `sample` is what
was drawn, `schedule` says when and how large. Knows nothing of how trees are grown.
"""
