"""How an array is cut into blocks of rows."""

from types import SimpleNamespace

import numpy as np
import pytest

from xarray_tensordict.core.blocks import (
    MERGED_BYTES,
    READ_BYTES,
    TINY,
    PreferredChunks,
    borders,
    merged_chunks,
    preferred_chunks,
    row_blocks,
    with_renamed_chunks,
)
from xarray_tensordict.core.model import StoredArray


@pytest.mark.parametrize(
    ("shape", "itemsize", "target", "expected"),
    [
        ((), 8, 100, ()),
        ((10,), 8, 80, (10,)),
        ((10,), 8, 79, (9,)),
        ((10, 4), 2, 80, (10, 4)),
        ((10, 4), 2, 79, (9, 4)),
        ((10, 4), 2, 8, (1, 4)),
        ((10, 4), 2, 7, (1, 3)),
        ((10, 4), 2, 1, (1, 1)),
        ((0, 4), 2, 80, (1, 4)),
        ((3, 0), 2, 4, (2, 1)),
        ((3, 5, 7), 1, 15, (1, 2, 7)),
    ],
)
def test_whole_rows_or_parts_of_one(shape, itemsize, target, expected):
    assert row_blocks(shape, itemsize, target) == expected


@pytest.mark.parametrize(
    ("chunks", "shape", "target", "expected"),
    [
        ((2, 3), (10, 6), 12, (2, 6)),
        ((2, 3), (10, 6), 11, (2, 3)),
        ((2, 3), (10, 6), 24, (4, 6)),
        ((2, 3), (10, 6), 10**6, (10, 6)),
        ((4, 3), (10, 6), 48, (8, 6)),
        ((9, 9), (4, 5), 10**6, (4, 5)),
        ((2, 3), (0, 6), 10**6, (1, 6)),
        ((), (), 8, ()),
        ((1, 2), (10, 2), 4, (2, 2)),
    ],
)
def test_chunks_are_merged_from_the_last_axis(chunks, shape, target, expected):
    assert merged_chunks(chunks, shape, 1, target) == expected


def test_merging_counts_bytes():
    assert merged_chunks((2, 3), (10, 6), 2, 24) == (2, 6)


@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize(
    "positions",
    [range(3, 20), range(16), range(9, -1, -3), range(0), range(5, 6), range(1, 40, 7), range(20, 2, -1), range(8, 16)],
)
def test_borders_of_a_range_are_where_blocks_change(positions, step):
    blocks = [position // step for position in positions]
    changes = [at for at in range(1, len(blocks)) if blocks[at] != blocks[at - 1]]
    expected = [0, *changes, len(blocks)]
    assert borders(positions, step) == expected
    if len(positions):
        assert borders(np.array(positions), step) == expected


def test_nothing_is_cut_where_positions_come_back():
    assert borders(np.array([0, 9, 1]), 4) == [0, 3]
    assert borders(np.array([0, 1, 9, 8]), 4) == [0, 2, 4]
    assert borders(np.array([5, 5, 5]), 4) == [0, 3]


def test_preferred_chunks_differ_from_what_is_stored():
    chunks = PreferredChunks({"t": 8}, {"t": 4, "x": 2})
    assert chunks.get("t", 9) == 8
    assert chunks.get("q", 9) == 9
    assert (chunks.get("t"), chunks.get("x"), chunks.get("q")) == (4, 2, None)
    renamed = with_renamed_chunks({"preferred_chunks": chunks}, {"t": "time"})["preferred_chunks"]
    assert type(renamed) is PreferredChunks
    assert (renamed, renamed.stored) == ({"time": 8}, {"time": 4, "x": 2})
    plain = {"preferred_chunks": {"t": 8, "x": 2}, "dtype": "i2"}
    assert with_renamed_chunks(plain, {"t": "time"}) == {"preferred_chunks": {"time": 8, "x": 2}, "dtype": "i2"}
    assert with_renamed_chunks({"dtype": "i2"}, {"t": "time"}) == {"dtype": "i2"}


def extent(shape, chunk_shape=None, *, itemsize=1, dims="tyx", **more):
    data = SimpleNamespace(shape=shape, dtype=np.dtype(f"V{itemsize}"))
    return tuple(dims[: len(shape)]), StoredArray("x", data, (None,) * len(shape), chunk_shape=chunk_shape, **more)


MB = 1 << 20


def test_arrays_without_chunks_share_their_rows():
    rows, wide, other = preferred_chunks([extent((10**6, 1024)), extent((10**6, 4096)), extent((77, 10), dims="qx")])
    assert rows == {"t": READ_BYTES // 4096, "y": 1024}
    assert wide == {"t": READ_BYTES // 4096, "y": 4096}
    assert other == {"q": 77, "x": 10}
    assert (rows.get("t"), type(rows)) == (None, PreferredChunks)
    assert preferred_chunks([extent((10**6, 1024)), extent((9, 4096))])[0] == {"t": READ_BYTES // 1024, "y": 1024}
    assert preferred_chunks([extent(())]) == [{}]
    wide_first = preferred_chunks([extent((10**6, 4096)), extent((10**6, 1024))])
    assert [each["t"] for each in wide_first] == [READ_BYTES // 4096] * 2


def test_rows_beside_chunks_are_whole_chunks():
    free, stored = preferred_chunks([extent((10**6, 4096)), extent((10**6,), (5000,))])
    assert free["t"] == 32768 // 5000 * 5000
    assert stored == {"t": 5000}
    assert type(stored) is dict
    assert preferred_chunks([extent((10**6, 4096)), extent((10**6,), (40000,))])[0]["t"] == 1
    assert preferred_chunks([extent((10**6, 4096)), extent((10**6,), (0,))])[0]["t"] == 32768
    assert preferred_chunks([extent((10**6, 4096)), extent((10**6,), (5000,), dims="q")])[0]["t"] == 32768
    assert preferred_chunks([extent((100, 4096)), extent((100,), (30,))])[0]["t"] == 100
    assert preferred_chunks([extent(()), extent((), ())]) == [{}, {}]


def test_many_tiny_chunks_are_read_several_at_once():
    many = extent((2000 * 1024,), (1024,), merges=TINY)
    (found,) = preferred_chunks([many])
    assert found == {"t": min(MERGED_BYTES, 2000 * 1024)}
    assert found.get("t") == 1024
    for as_they_are in (
        extent((2000 * 1024,), (1024,)),
        extent((1000 * 1024,), (1024,), merges=TINY),
        extent((2000 * MB,), (MB,), merges=TINY),
    ):
        assert preferred_chunks([as_they_are]) == [{"t": as_they_are[1].chunk_shape[0]}]
    assert preferred_chunks([extent((1001 * 1024,), (1024,), merges=TINY)]) == [{"t": 1001 * 1024}]
    assert preferred_chunks([extent((1000 * 1024 + 1,), (1024,), merges=TINY)]) == [{"t": 1000 * 1024 + 1}]
    assert preferred_chunks([extent((2000 * (MB - 1),), (MB - 1,), merges=TINY)]) == [{"t": 16 * (MB - 1)}]
    assert preferred_chunks([extent((2000, 4), (1, 4), itemsize=8, merges=TINY)]) == [{"t": 2000, "y": 4}]


def test_what_should_not_be_separated_may_be_smaller_than_what_is_read():
    (found,) = preferred_chunks([extent((100, 6), (50, 6), encoding={"chunks": (10, 3)})])
    assert found == {"t": 50, "y": 6}
    assert (found.get("t"), found.get("y")) == (10, 3)
