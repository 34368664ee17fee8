"""The store: binned rows, shuffled, in checksummed blocks on disk.

Other packages may use

    ingest.ingest       makes a store from any source
    dataset             Dataset and Block: a store, a view or a store still being written
    views               split, folds, with_class_weight, class_factors, ReweightedRows
    staged              StagedRows: rows that are still being read
    binning             Binning and the features; also bins the rows that are predicted
    lookup.Bins         the type of binned rows
    shuffle.permuted    the random order of a block's rows

Knows the readers, and nothing of samples, trees or training.
"""
