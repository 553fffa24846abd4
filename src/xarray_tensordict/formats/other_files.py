"""What a file is that no format opens, by its first bytes, and what opens it."""

from __future__ import annotations

import zipfile
from collections.abc import Collection

# How files of formats begin (the format specifications of Unidata, WMO, the HDF group, PKWARE, Apache, Adobe).
_ENGINES = {
    b"CDF\x01": "a netCDF-3 file. Open it with engine='scipy' or engine='netcdf4'",
    b"CDF\x02": "a netCDF-3 file (64-bit offset). Open it with engine='scipy' or engine='netcdf4'",
    b"CDF\x05": "a netCDF-3 file (CDF-5). Open it with engine='netcdf4'",
    b"GRIB": "a GRIB file. Open it with engine='cfgrib'",
    b"\x0e\x03\x13\x01": "an HDF4 file. Convert it to HDF5 with h4toh5",
    b"II*\x00": "a TIFF file. Open it with engine='rasterio' (rioxarray)",
    b"MM\x00*": "a TIFF file. Open it with engine='rasterio' (rioxarray)",
    b"\x1f\x8b": "a gzip file. Unpack it",
    b"\x93NUMPY": "a file of numpy. Load it with numpy.load",
    b"PAR1": "a parquet file. pandas.read_parquet(path).to_xarray() makes a Dataset of it",
    b"ARROW1": "an Arrow file. pandas.read_feather(path).to_xarray() makes a Dataset of it",
}
_OF_TORCH = (
    "what looks like a file of torch.save. Load it with torch.load(path), then xarray_tensordict.to_dataset(td) makes a Dataset "
    "of a tensordict"
)
_TORCH_BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 "


def archive_names(path: str) -> list[str] | None:
    """The paths in a zip archive; None where it is none, or is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return None


def what_starts_with(head: bytes, names: Collection[str] | None = None) -> str:
    """What a file is, and what opens it.

    Parameters
    ----------
    head
        Its first bytes.
    names
        The paths in it where it is a zip archive, as far as they are known.

    Examples
    --------
    >>> what_starts_with(b"GRIB")
    "a GRIB file. Open it with engine='cfgrib'; ds.td works on a Dataset from any engine"
    """
    if head.startswith(_TORCH_BEFORE_ZIP) or (head.startswith(b"PK") and names is None):
        return _OF_TORCH
    if head.startswith(b"PK"):
        return _what_has(names or ())
    for start, what in _ENGINES.items():
        if head.startswith(start):
            return f"{what}; ds.td works on a Dataset from any engine"
    if head[:1] == b"\x80":
        return "a pickle, which can run any code when it is loaded; nothing here loads it"
    if head.lstrip().startswith(b"{"):
        return "a file of JSON that is no kerchunk reference"
    found = f"a file that starts with {head[:8]!r}" if head else "an empty file"
    if head and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return f"{found}. If it is a table of text, pandas.read_csv(path).to_xarray() makes a Dataset of it"
    return f"{found}. If another engine of xarray opens it, name that engine; ds.td works on a Dataset from any engine"


def _what_has(names: Collection[str]) -> str:
    if any(name.endswith("/data.pkl") for name in names):  # as torch.save writes it
        return _OF_TORCH
    if all(name.endswith(".npy") for name in names):
        return "an archive of numpy. Load it with numpy.load; xr.Dataset takes the arrays"
    if "config.json" in names:
        return "a zip archive that looks like a model of Keras. Load it with keras.models.load_model"
    return f"a zip archive with {sorted(names)[:5]} in it. Unpack it"
