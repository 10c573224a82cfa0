"""Results as a Parquet file, written row group by row group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pyarrow.parquet as pq

from api.result_formats import tables
from api.result_formats.outlet import Outlet
from store.result_columns import Columns

ROWS_PER_GROUP = 16_000


def encode(columns: Iterable[Columns], include: Collection[str]) -> Iterator[bytes]:
    """The file in pieces; its last one, the footer, says that it is whole."""
    outlet = Outlet()
    writer = pq.ParquetWriter(
        outlet, tables.schema(include), compression="zstd", compression_level=1, use_dictionary=["error"]
    )
    for batch in tables.batches(columns, include, num_rows=ROWS_PER_GROUP):
        writer.write_batch(batch, row_group_size=len(batch))
        yield outlet.take()
    writer.close()
    yield outlet.take()
