"""References as a :class:`~..base.Format`: JSON files, and folders of parquet files, as kerchunk and VirtualiZarr write them.

A reference names for each chunk of a zarr store the file that has its bytes.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from ...core.metadata import checked, parse
from ..array_wrappers import named_errors
from ..base import StoreOptions
from .format import ZarrFormat, is_parquet_reference

_HEAD = 4096
_KEYS = (b'"refs"', b'".zgroup"', b'".zattrs"', b'".zmetadata"', b'zarr.json"')


def _check(source: str) -> None:
    """Raise for references that fsspec passes over, or that point to no file.

    fsspec reads the file again: references that it is given would be in every pickle of a Dataset.
    """
    with open(source, "rb") as file:
        document = parse(file.read(), dict[str, Any], source)
    given = document.get("refs", document) if "version" in document else document
    if "version" in document and document.get("gen"):
        raise ValueError("it generates references ('gen'), which are not read: write them out one by one")
    references = checked(given, dict[str, str | list[Any] | dict[str, Any]], f"{source}, refs")
    for key, each in references.items():
        kinds = [type(part) for part in each] if isinstance(each, list) else [str]
        if kinds not in ([str], [str, int, int]):
            raise ValueError(
                f"the reference {key!r} is {each!r:.80}: expected [path] or [path, first byte, number of bytes]"
            )
    for path in {str(each[0]) for each in references.values() if isinstance(each, list)}:
        local = path.removeprefix("file://")
        if "://" not in local and os.path.exists(local) and not os.path.isfile(local):
            raise ValueError(f"it refers to {path!r}: expected a file, found a folder, a device or a pipe")


class KerchunkFormat(ZarrFormat):
    """``storage_options`` are those of fsspec's ``ReferenceFileSystem`` (``remote_protocol``, ``remote_options``, ...)."""

    expects = "a kerchunk reference"
    marks = "'.zmetadata' with a record size"
    targets: ClassVar = {}
    url_endings = (".json", ".parq", ".parquet")
    engine = None
    backend = None
    why_not_annotated = "a reference describes files of others: write a store with ds.td.to_zarr, and annotate that"

    def claims(self, source: Any) -> bool:
        if not isinstance(source, str):
            return False
        if os.path.isdir(source):
            return is_parquet_reference(source)
        with open(source, "rb") as file:
            head = file.read(_HEAD)
        return head.lstrip().startswith(b"{") and any(key in head for key in _KEYS)

    def store_of(self, source: Any, options: StoreOptions) -> Any:
        import fsspec
        from zarr.storage import FsspecStore

        with named_errors(str(source)):
            if os.path.isfile(source):
                _check(source)
            files = fsspec.filesystem(
                "reference", fo=source, **{**(options.storage_options or {}), "asynchronous": True}
            )
        return FsspecStore(files, read_only=True, path="")

    def kind(self, source: Any) -> str:
        return "kerchunk reference"

    def why_not_changed(self, source: Any) -> str | None:
        return "it is a reference to files of others"
