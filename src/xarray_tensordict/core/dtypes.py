"""The one table of dtypes of torch that numpy lacks: how stores hold them, and what they are shown as."""

from __future__ import annotations

from typing import Literal

CodedDtype = Literal[
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "complex32",
]
"""Their names; torch and zarr v3 (zarr-specs, data type extensions) name the floats alike."""

CODE_DTYPES: dict[str, str] = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "complex32": "uint32",
}
"""The integers of the same width, as which their values are stored."""


def widened_dtype_name(torch_dtype: str) -> str:
    """The dtype of numpy that holds every value of a dtype that numpy lacks.

    Examples
    --------
    >>> widened_dtype_name("bfloat16")
    'float32'
    """
    return "complex64" if torch_dtype == "complex32" else "float32"
