"""Rows become bins, shuffled, in checksummed blocks on disk.

`ingest.ingest` writes a store, `dataset.Dataset` opens one, `views` are parts of one, and
`staged.StagedDataset` is one that is still being written. Knows nothing of samples or trees.
"""
