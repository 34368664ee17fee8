"""Tables to try the library on: real splice sites, and synthetic tables of any size.

Both are streamed: neither the 4.8 million windows of chromosome 21 nor a synthetic table of a
billion rows is ever in memory at once.
"""

from sparrowboost.datasets.splice import load_splice, splice_batches, splice_schema, write_splice
from sparrowboost.datasets.synthetic import make_large

__all__ = ["load_splice", "make_large", "splice_batches", "splice_schema", "write_splice"]
