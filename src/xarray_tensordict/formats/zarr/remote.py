"""What the errors of the clients of stores far away mean."""

from __future__ import annotations

from typing import Any

from ..._compat.zarr import is_remote

_CLIENTS = frozenset({"botocore", "aiobotocore", "aiohttp", "obstore", "s3fs", "gcsfs", "adlfs", "google", "azure"})
_REFUSALS = ("credential", "accessdenied", "access denied", "forbidden", "unauthenticated", "permissiondenied")
_MISSING_PACKAGES = {
    "s3": "xarray-tensordict[s3]",
    "s3a": "xarray-tensordict[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
}


def raise_translated(error: Exception, source: Any, description: str) -> None:
    """Raise an error of a client of a store far away (s3fs, obstore, ...) as one of Python's own; others are let pass."""
    found = _translated(error, description) if is_remote(source) else None
    if found is not None:
        raise found from error


def _translated(error: Exception, description: str) -> Exception | None:
    told = f"{type(error).__name__}: {error}".split("\n")[0]
    words = told.lower()
    if isinstance(error, ImportError):
        scheme = description.partition("://")[0]
        package = _MISSING_PACKAGES.get(scheme, "the package it names")
        return ImportError(
            f"{description}: URLs of this kind need a package that is missing ({error}): install {package!r}"
        )
    of_a_client = type(error).__module__.partition(".")[0] in _CLIENTS
    if isinstance(error, PermissionError) or (of_a_client and any(word in words for word in _REFUSALS)):
        return PermissionError(
            f"{description}: the store refuses access ({told}). Pass credentials in storage_options, for s3:// as "
            f"{{'key': ..., 'secret': ...}}, or {{'anon': True}} to read what is public"
        )
    if "bucket does not exist" in words or "nosuchbucket" in words:
        return FileNotFoundError(f"{description}: the bucket is not there ({told}); create it, or check its name")
    if of_a_client or isinstance(error, (ConnectionError, TimeoutError)):
        return ConnectionError(
            f"{description}: the store does not answer as it should ({told}); check address and network"
        )
    return None
