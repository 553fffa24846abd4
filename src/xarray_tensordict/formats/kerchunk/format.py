"""References as a :class:`~..base.Format`: JSON files, and folders of parquet files, as kerchunk and VirtualiZarr write them.

A reference says for each chunk of a zarr store in which file its bytes are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from ...core.metadata import checked, parse
from ..array_wrappers import named_errors
from ..base import StoreOptions
from ..zarr.format import ZarrFormat, is_parquet_reference

_HEAD = 4096
_KEYS = (b'"refs"', b'".zgroup"', b'".zattrs"', b'".zmetadata"', b'zarr.json"')


_MOST_GENERATED = 1_000_000


def _check(source: str, options: Mapping[str, Any]) -> None:
    """Raise for references that fsspec does not understand or passes over, that lead to no file, or that do not fit into memory."""
    with open(source, "rb") as file:
        document = parse(file.read(), dict[str, Any], source)
    given = document.get("refs", document) if "version" in document else document
    references = checked(given, dict[str, str | list[Any] | dict[str, Any]], f"{source}, refs")
    for path in {str(each[0]) for each in references.values() if isinstance(each, list) and each}:
        local = path.removeprefix("file://")
        if "://" not in local and os.path.exists(local) and not os.path.isfile(local):
            raise ValueError(f"it refers to {path!r}: expected a file, found a folder, a device or a pipe")
    _check_generated(document.get("gen"), options)


def _check_generated(rules: Any, options: Mapping[str, Any]) -> None:
    if rules and options.get("simple_templates", True):
        raise ValueError(
            "it generates references ('gen'): pass storage_options={'simple_templates': False} to have them"
        )
    for rule in rules or ():
        axes = rule["dimensions"].values()
        ranges = [
            axis if isinstance(axis, list) else range(axis.get("start", 0), axis["stop"], axis.get("step", 1))
            for axis in axes
        ]
        count = math.prod(max(0, -((a.start - a.stop) // a.step)) if isinstance(a, range) else len(a) for a in ranges)
        if count > _MOST_GENERATED:
            raise ValueError(f"{rule.get('key')!r} generates {count} references, expected at most {_MOST_GENERATED}")


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
                _check(source, options.storage_options or {})
            files = fsspec.filesystem(
                "reference", fo=source, **{**(options.storage_options or {}), "asynchronous": True}
            )
        return FsspecStore(files, read_only=True, path="")

    def kind(self, source: Any) -> str:
        return "kerchunk reference"

    def why_not_changed(self, source: Any) -> str | None:
        return "it is a reference to files of others"
