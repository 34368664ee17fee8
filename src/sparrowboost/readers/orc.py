"""ORC files: streamed by Arrow, some rows at a time, and written to scratch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from sparrowboost.readers.base import RandomAccessSource, check_names
from sparrowboost.readers.ipc import IpcFile, spill
from sparrowboost.runtime.errors import DataError

BATCH_ROWS = 16_384


def open_orc(
    path: Path, name: str, scratch: Path, check: Callable[[RandomAccessSource], object]
) -> IpcFile:
    """An ORC file as a source."""
    if not path.stat().st_size:
        raise DataError(f"{name}: the file is empty.")
    import pyarrow.dataset as pds

    try:
        dataset = pds.dataset(str(path.absolute()), format="orc")
        check_names(name, dataset.schema.names)
        # By default, the scanner reads ahead without bound.
        scanner = dataset.scanner(
            batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
        )
        reader = scanner.to_reader()
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{name}: not a readable ORC file ({str(error).splitlines()[0]}); it may be truncated "
            "or damaged; write it again or leave it out."
        ) from None
    return spill(reader, name, scratch, check)
