"""Results as an Arrow stream (IPC), batch by batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa

from api.result_formats import tables
from api.result_formats.outlet import Outlet
from store.result_columns import Columns

ROWS_PER_BATCH = 16_000


def encode(columns: Iterable[Columns], include: Collection[str]) -> Iterator[bytes]:
    """The schema, the batches, and the mark of the end, without which the stream is not whole."""
    outlet = Outlet()
    writer = pa.ipc.new_stream(outlet, tables.schema(include))
    for batch in tables.batches(columns, include, num_rows=ROWS_PER_BATCH):
        writer.write_batch(batch)
        yield outlet.take()
    writer.close()
    yield outlet.take()
