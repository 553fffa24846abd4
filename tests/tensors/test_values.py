"""Values from numpy to tensordict leaves and back: bit for bit, writable, or an error that names the variable."""

from __future__ import annotations

import datetime as dt
import gc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from tensordict import MemoryMappedTensor, NonTensorData, NonTensorStack, TensorDict, UnbatchedTensor

import xarray_tensordict  # noqa: F401 - ds.td
from xarray_tensordict._compat.tensordict import IS_0_14
from xarray_tensordict.tensors.values import (
    numpy_from_tensor,
    plain_tensor,
    rows_from_numpy,
    tensor_from_numpy,
    torch_dtype,
)

pytestmark = pytest.mark.filterwarnings("error")

NAT = -(2**63)
NUMPY_DTYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]


def readonly(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


LAYOUTS = {
    "plain": np.arange(6.0),
    "transposed": np.arange(12).reshape(3, 4).T,
    "step": np.arange(12)[::3],
    "negative strides": np.arange(6)[::-1],
    "one negative axis": np.arange(12).reshape(3, 4)[:, ::-1],
    "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    "broadcast row": np.broadcast_to(np.arange(3), (4, 3)),
    "sliding window": np.lib.stride_tricks.sliding_window_view(np.arange(5), 3),
    "writable sliding window": np.lib.stride_tricks.sliding_window_view(np.arange(5), 3, writeable=True),
    "read-only": readonly(np.arange(3)),
    "read-only empty": readonly(np.zeros((0, 3))),
    "empty": np.zeros((3, 0)),
    "empty big-endian": np.zeros((0, 2), ">i4"),
    "0-d": np.array(2.5),
    "numpy scalar": np.float32(2.5),
    "big-endian": np.arange(5, dtype=">u2"),
    "big-endian complex": np.array([1 + 2j], ">c16"),
    "field of a record": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i1"), ("b", "f8")])["b"],
    "size-1 axes": np.arange(3)[None, :, None],
    "field of one record": np.ones(1, [("value", "f4"), ("flag", "u1")])["value"],
    "one row, negative stride": np.ones((1, 2))[::-1],
    "one element, negative strides": np.ones((1, 1))[::-1, ::-1],
    "no rows, negative stride": np.ones((0, 3))[:, ::-1],
}


@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_values_in_a_tensor_that_can_be_written_element_by_element(
    layout: str, copy: bool | None
) -> None:
    array = np.array(LAYOUTS[layout], copy=False) if layout != "numpy scalar" else LAYOUTS[layout]
    expected = np.array(array, copy=True)
    tensor = tensor_from_numpy(array, name="x", copy=copy)
    assert tensor.shape == expected.shape
    assert np.array_equal(tensor.numpy(), expected)
    assert tensor.numpy().dtype == expected.dtype.newbyteorder("=")
    if copy is True:
        assert not np.shares_memory(tensor.numpy(), np.asarray(array))
        ones = torch.ones_like(tensor)
        for index in np.ndindex(*tensor.shape):
            tensor[index] = 1
            ones[index] = 0
        assert bool((tensor == 1).all())
        if tensor.numel() > 1:
            tensor.view(-1)[0] = 0
            assert int((tensor == 0).sum()) == 1


def test_broadcast_arrays_become_tensors_whose_elements_are_independent() -> None:
    tensor = tensor_from_numpy(np.broadcast_to(np.arange(3), (4, 3)), name="x")
    tensor[0, 0] = 99
    assert tensor.tolist() == [[99, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("order", ["<", ">"])
def test_dtypes_with_a_torch_twin_are_kept_in_both_byte_orders(dtype: str, order: str) -> None:
    array = np.array([0, 1, 1], np.dtype(dtype).newbyteorder(order))
    tensor = tensor_from_numpy(array, name="x")
    assert tensor.dtype == torch_dtype(array) == torch_dtype(array.dtype)
    back, widened = numpy_from_tensor(tensor, name="x")
    assert widened is None
    assert back.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(back, array)


def test_memory_is_shared_where_torch_can_and_only_there() -> None:
    array = np.arange(6.0).reshape(2, 3)
    for view in (array, array.T, array[:, 1:], array[::1]):
        assert np.shares_memory(tensor_from_numpy(view, name="x").numpy(), array)
        assert np.shares_memory(tensor_from_numpy(view, name="x", copy=False).numpy(), array)
    assert not np.shares_memory(tensor_from_numpy(array, name="x", copy=True).numpy(), array)
    dates = np.array(["2000-01-01"], "M8[ns]")
    assert np.shares_memory(tensor_from_numpy(dates, name="x", copy=False).numpy(), dates)


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.arange(3)[::-1], "strides"),
        (np.arange(3, dtype=">i4"), "byte order"),
        (np.broadcast_to(3, (2,)), "read-only"),
        (np.array(["2000"], "M8[s]"), "nanoseconds"),
        (np.array(["2000"], "M8[s]").astype(">M8[s]"), "nanoseconds"),
    ],
)
def test_copy_false_raises_rather_than_copying(array: np.ndarray[Any, Any], why: str) -> None:
    with pytest.raises(ValueError, match=rf"'a/x' cannot be had without a copy.*{why}.*copy=None"):
        tensor_from_numpy(array, name="a/x", copy=False)


def test_copy_false_raises_for_a_cast_too() -> None:
    with pytest.raises(ValueError, match=r"'x' cannot be had without a copy.*bfloat16"):
        tensor_from_numpy(np.ones(2, "f4"), name="x", copy=False, torch_dtype=torch.bfloat16)
    assert tensor_from_numpy(np.ones(2, "f4"), name="x", copy=False, torch_dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros(2, "g"), "float128|longdouble"),
        (np.zeros(2, "G"), "complex256|clongdouble"),
        (np.array(["a"]), "<U1"),
        (np.array([b"a"]), "S1"),
        (np.array(["a"], np.dtypes.StringDType()), "StringDType"),  # type: ignore[call-overload]
        (np.array([{}], object), "object"),
        (np.array([np.arange(2), None, [1]], object), "object"),
        (np.zeros(2, [("a", "i4")]), "fields"),
        (np.zeros(2, "V3"), "V3"),
    ],
)
def test_dtypes_that_torch_lacks_raise_and_say_what_to_do(array: np.ndarray[Any, Any], text: str) -> None:
    if array.dtype.kind in "fc" and array.itemsize in (8, 16) and array.dtype.name in ("float64", "complex128"):
        pytest.skip("longdouble is float64 on this platform")
    with pytest.raises(TypeError, match=rf"'a/x' .*expected .*found dtype .*({text})"):
        tensor_from_numpy(array, name="a/x")
    assert torch_dtype(array) is None


def test_dates_of_another_calendar_raise_a_worded_error() -> None:
    cftime = pytest.importorskip("cftime")
    array = np.array([None, float("nan"), cftime.DatetimeNoLeap(2000, 2, 1)], object)
    with pytest.raises(TypeError, match=r"'time' .*another calendar.*convert_calendar"):
        tensor_from_numpy(array, name="time")


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("unit", ["Y", "M", "D", "us", "ns", "25s", "10Y"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_datetimes_become_nanoseconds_since_1970(unit: str, order: str) -> None:
    array = np.array(["2021-03-04T05:06:07", "1900-01-01", "NaT"], f"{order}M8[{unit}]")
    tensor = tensor_from_numpy(array, name="time")
    assert tensor.dtype == torch.int64
    for value, date in zip(tensor.tolist()[:2], array.astype("M8[us]").tolist()[:2], strict=True):
        assert value == (date.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1) * 1000
    assert tensor.tolist()[2] == NAT


@pytest.mark.parametrize(
    ("dtype", "outside"),
    [("M8[s]", [0, 9223372037]), ("m8[D]", [0, -106752]), ("M8[Y]", [-293]), ("M8[M]", [12 * 292 + 4])],
)
def test_times_out_of_range_never_wrap(dtype: str, outside: list[int]) -> None:
    with pytest.raises(OverflowError, match=r"'time' holds (dates|durations) from .* to .*int64 nanoseconds"):
        tensor_from_numpy(np.array(outside, "i8").view(dtype), name="time")


def test_durations_in_calendar_units_have_no_length() -> None:
    for unit in "YM":
        with pytest.raises(TypeError, match=r"'x' .*calendar units"):
            tensor_from_numpy(np.array([1], f"m8[{unit}]"), name="x")


def test_times_finer_than_a_nanosecond_raise_unless_they_are_whole_ones() -> None:
    assert tensor_from_numpy(np.array([3000, NAT], "i8").view("M8[ps]"), name="x").tolist() == [3, NAT]
    with pytest.raises(ValueError, match=r"'x' .*finer than a nanosecond"):
        tensor_from_numpy(np.array([3001], "i8").view("m8[ps]"), name="x")


def bit_patterns(dtype: torch.dtype) -> torch.Tensor:
    raw = torch.uint8 if dtype.itemsize == 1 else torch.int16
    return torch.arange(2 ** (8 * dtype.itemsize), dtype=torch.int32).to(raw).view(dtype)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_floats_without_a_numpy_twin_are_widened_and_come_back_bit_for_bit(name: str) -> None:
    dtype = getattr(torch, name)
    tensor = bit_patterns(dtype)
    array, widened = numpy_from_tensor(tensor, name="x")
    assert (array.dtype, widened) == (np.dtype("f4"), name)
    back = tensor_from_numpy(array, name="x", torch_dtype=dtype)
    assert back.dtype == dtype
    nan = torch.from_numpy(np.isnan(array))
    assert bool(back.float().isnan()[nan].all())
    raw = torch.uint8 if dtype.itemsize == 1 else torch.int16
    assert torch.equal(back.view(raw)[~nan], tensor.view(raw)[~nan])


def test_complex_halves_are_widened_to_complex64() -> None:
    values = np.array([1 + 2j, -0.5j], "c8")
    tensor = tensor_from_numpy(values, name="x", torch_dtype=torch.complex32)
    assert tensor.dtype == torch.complex32
    array, widened = numpy_from_tensor(tensor, name="x")
    assert (array.dtype, widened) == (np.dtype("c8"), "complex32")
    assert np.array_equal(array, values)


def test_tensors_are_detached_and_resolved() -> None:
    array, _ = numpy_from_tensor(torch.nn.Parameter(torch.ones(2)), name="x")
    assert array.tolist() == [1, 1]
    conj = torch.tensor([1 + 2j]).conj()
    assert conj.is_conj()
    assert numpy_from_tensor(conj, name="x")[0].tolist() == [1 - 2j]
    assert numpy_from_tensor(conj.imag, name="x")[0].tolist() == [-2]
    assert numpy_from_tensor(torch.ones(()).expand(2, 3), name="x")[0].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_subclasses_give_plain_arrays() -> None:
    mapped = MemoryMappedTensor.from_tensor(torch.arange(3))
    array, _ = numpy_from_tensor(mapped, name="x")
    assert type(array) is np.ndarray
    assert array.tolist() == [0, 1, 2]
    td = TensorDict({"u": UnbatchedTensor(torch.arange(3).to(torch.bfloat16))}, batch_size=[4])
    array, widened = numpy_from_tensor(td.get("u"), name="u")
    assert array.tolist() == [0, 1, 2]
    assert widened == "bfloat16"
    assert type(plain_tensor(td.get("u"))) is torch.Tensor
    assert type(plain_tensor(mapped)) is torch.Tensor


@pytest.mark.parametrize(
    ("make", "error", "way_out"),
    [
        (lambda: torch.eye(2).to_sparse(), TypeError, "to_dense"),
        (lambda: torch.eye(2).to_sparse_csr(), TypeError, "to_dense"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), TypeError, "to_padded_tensor"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), TypeError, "to_padded_tensor"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), TypeError, "dequantize"),
        (lambda: torch.ones(2, device="meta"), ValueError, "meta"),
        (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8), TypeError, "view"),
        (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), TypeError, "view"),
        (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.uint4), TypeError, "view"),
    ],
)  # fmt: skip
def test_tensors_without_plain_values_are_refused_with_the_way_out(
    make: Any, error: type[Exception], way_out: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about prototypes and deprecations
        tensor = make()
    with pytest.raises(error, match=rf"'a/x' .*{way_out}"):
        numpy_from_tensor(tensor, name="a/x")


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(["a", "bc"]), ["a", "bc"]),
        (np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (np.array(["a", "bc"], np.dtypes.StringDType()), ["a", "bc"]),  # type: ignore[call-overload]
        (np.array([np.str_("a"), np.bytes_(b"b")], object), ["a", b"b"]),
        (np.array(["a", None], object), ["a", None]),
        (np.array([1, np.int64(2), 2.5, np.bool_(True)], object), [1, 2, 2.5, True]),
        (np.array([1, 2]), [1, 2]),
        (np.array([True]), [True]),
        (np.array([{"a": 1}, [1, 2]], object), [{"a": 1}, [1, 2]]),
    ],
)
def test_one_python_object_per_row(array: np.ndarray[Any, Any], expected: list[Any]) -> None:
    stack = rows_from_numpy(array, ndim=1, batch_size=array.shape)
    assert type(stack) is NonTensorStack
    assert stack.batch_size == array.shape
    assert stack.tolist() == expected
    assert [type(row) for row in stack.tolist()] == [type(row) for row in expected]


def test_missing_values_are_kept() -> None:
    rows = rows_from_numpy(np.array(["a", np.nan, None], object), ndim=1, batch_size=[3]).tolist()
    assert rows[0] == "a"
    assert type(rows[1]) is float
    assert rows[1] != rows[1]
    assert rows[2] is None


def test_arrays_in_object_rows_stay_arrays() -> None:
    array = np.empty(2, object)
    array[0], array[1] = np.arange(2, dtype="u2"), np.arange(2, dtype="u2")
    rows = rows_from_numpy(array, ndim=1, batch_size=[2]).tolist()
    assert all(type(row) is np.ndarray and row.dtype == np.uint16 for row in rows)


def test_more_axes_than_the_batch_give_nested_lists() -> None:
    array = np.array([[["a", "b"], ["c", "d"]], [["e", "f"], ["g", "h"]]])
    stack = rows_from_numpy(array, ndim=1, batch_size=[2])
    assert stack.batch_size == (2,)
    assert stack[1].data == [["e", "f"], ["g", "h"]]
    stack = rows_from_numpy(array, ndim=2, batch_size=[2, 2])
    assert stack.batch_size == (2, 2)
    assert stack[1, 0].data == ["e", "f"]
    assert type(stack[1, 0].data[0]) is str


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array("a"), "a"),
        (np.array(b"a"), b"a"),
        (np.str_("a"), "a"),
        (np.float32(1.5), 1.5),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([], "U1"), []),
    ],
)
def test_without_batch_axes_the_whole_array_is_one_value(array: Any, expected: Any) -> None:
    data = rows_from_numpy(array, ndim=0, batch_size=[3])
    assert type(data) is NonTensorData
    assert data.batch_size == (3,)
    assert data.data == expected
    assert type(data.data) is type(expected)


def test_one_value_may_be_any_object() -> None:
    for value in ({"a": [1]}, [1, "a"], None, (1, 2)):
        array = np.empty((), object)
        array[()] = value
        assert rows_from_numpy(array, ndim=0, batch_size=[]).data is value


@pytest.mark.parametrize("size", [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 0), (0, 2, 0)])
def test_batches_without_rows_keep_their_whole_batch_size(size: tuple[int, ...]) -> None:
    stack = rows_from_numpy(np.empty((*size, 2), "U3"), ndim=len(size), batch_size=size)
    assert type(stack) is (NonTensorData if IS_0_14 else NonTensorStack), "0.14 holds no stack without rows"
    assert stack.batch_size == size
    assert rows_from_numpy(np.empty((*size, 2, 0), "U3"), ndim=len(size), batch_size=size).batch_size == size
    td = TensorDict({"x": torch.zeros(size), "s": stack}, batch_size=size)
    assert td.get("s").batch_size == size


def test_a_batch_size_that_is_not_that_of_the_rows_raises() -> None:
    with pytest.raises(ValueError, match=r"\[2\], not \[3\]"):
        rows_from_numpy(np.array(["a", "b"]), ndim=1, batch_size=[3])


def test_rows_of_a_named_batch_are_named_and_not_copied_by_their_tensordict():
    rows = rows_from_numpy(np.array([["a", "b"], ["c", "d"]]), ndim=2, batch_size=[2, 2], names=["time", "env"])
    assert rows.names == ["time", "env"]
    assert TensorDict({"text": rows}, [2, 2], names=["time", "env"]).get("text") is rows
    ds = xr.Dataset({"x": ("time", [1, 2]), "text": ("time", ["a", "b"])}).td.set_batch_dims("time")
    assert ds.td.to_tensordict().get("text").names == ["time"]
    assert ds.td.to_persistent().to_tensordict().get("text").names == ["time"]


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_as_it_was_after_rows_were_made(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        rows_from_numpy(np.array(["a", "b"]), ndim=1, batch_size=[2])
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
