"""Mutants: a store as a mapping of names to bytes, and changes of it that are written as JSON (recipes).

A recipe is a list of changes, such as ``{"do": "set", "file": "s.zarr/zarr.json", "at": ["attributes"], "value": 3}``.
``file`` is relative to the folder of the store; the member of an archive is ``s.zip!x/zarr.json``, and a JSON text
within JSON is entered by the step ``"<json>"`` of ``at``.
"""

from __future__ import annotations

import io
import json
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Contents = dict[str, Any]
"""The bytes of each file by its name; a `Special` instead of bytes is no file."""
Change = dict[str, Any]
TEXT = "<json>"
DEEP = "<deep>"


class Special:
    """What stands in the place of a file."""

    def __init__(self, make: Callable[[Path], None]) -> None:
        self.make = make


FIFO, FOLDER, LOOP = Special(os.mkfifo), Special(Path.mkdir), Special(lambda path: os.symlink(".", path))

ODD_NAMES = [
    "",
    "..",
    ".",
    "/abs",
    "a//b",
    "a/b",
    "x/",
    "\x00",
    "\x1b[31mred",
    "<b>x</b>",
    "a" * 300,
    "\ud800",
    "é",
    "self",
]
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 7, 2**31, 2**63, 2**64, 10**15, -(10**15), 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "time", "1", "i4", "<M8[ns]", "|O", "2000-01-01", "bytes", "sharding_indexed", *ODD_NAMES),
    *([], {}, [[]], [None], ["x"], ["time"], ["x", "x"], [3], [-1], [0], [True], [10**15], {"x": 1}, {"": {}}, DEEP),
]


# -- files -------------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> Contents:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def write(held: Contents, folder: Path) -> None:
    """Write files; what a file system cannot hold (a name of 300 letters, a file that is a folder too) is not written."""
    for name, content in held.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Special):
                content.make(path)
            else:
                path.write_bytes(content)
        except (OSError, ValueError):
            continue


def members(content: bytes) -> tuple[dict[str, bytes], int]:
    """The members of a zip archive, and how they are compressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        return {info.filename: archive.read(info) for info in infos}, infos[0].compress_type


def packed(held: dict[str, bytes], compression: int) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, content in held.items():
            info = zipfile.ZipInfo()
            info.filename, info.compress_type = name, compression
            archive.writestr(info, content)
    return target.getvalue()


# -- a change ----------------------------------------------------------------------------------------------------------


def apply(held: Contents, recipe: list[Change]) -> Contents:
    """The files after the changes of a recipe, in order."""
    held = dict(held)
    for change in recipe:
        archive, inside, name = change["file"].partition("!")
        if inside:
            files, compression = members(held[archive])
            _change(files, name, change)
            held[archive] = packed(files, compression)
        else:
            _change(held, archive, change)
    return held


def _change(files: Contents, name: str, change: Change) -> None:
    do = change["do"]
    if do == "remove":
        del files[name]
    elif do == "rename":
        files[change["to"]] = files.pop(name)
    elif do == "copy":
        files[name] = files[change["from"].rpartition("!")[2]]
    elif do in SPECIAL:
        files[name] = SPECIAL[do]
    else:
        files[name] = CONTENT[do](files[name], change)


def _bytes(content: bytes, change: Change) -> bytes:
    at, new = change["at"], bytes.fromhex(change["hex"])
    return content[:at] + new + content[at + change.get("over", len(new)) :]


def _cut(content: bytes, change: Change) -> bytes:
    return content[: change["at"]]


def _set(content: bytes, change: Change) -> bytes:
    return _dumped(_replaced(json.loads(content), change["at"], change["value"]))


def _drop(content: bytes, change: Change) -> bytes:
    return _dumped(_replaced(json.loads(content), change["at"], _GONE))


def _call(content: bytes, change: Change) -> bytes:
    """Give a member of a document another name."""
    document, at = json.loads(content), change["at"]
    value = _found(document, at)
    return _dumped(_replaced(_replaced(document, at, _GONE), [*at[:-1], change["to"]], value))


def _attribute(content: bytes, change: Change) -> bytes:
    """Set or delete an attribute of an object in an HDF5 file."""
    target = io.BytesIO(content)
    with h5py.File(target, "r+") as file:
        attrs, name, value = file[change["object"]].attrs, change["name"], change["value"]
        if name in attrs:
            del attrs[name]
        if value is not None:
            attrs[name] = json.dumps(value) if isinstance(value, dict) else np.asarray(value) if value == [] else value
    return target.getvalue()


def _deep(content: bytes, change: Change) -> bytes:
    return b"[" * change["depth"] + b"]" * change["depth"]


SPECIAL = {"fifo": FIFO, "folder": FOLDER, "loop": LOOP}
CONTENT: dict[str, Callable[[bytes, Change], bytes]] = {
    "bytes": _bytes,
    "cut": _cut,
    "set": _set,
    "drop": _drop,
    "call": _call,
    "attribute": _attribute,
    "deep": _deep,
}
_GONE = object()


def _dumped(value: Any) -> bytes:
    return json.dumps(value).replace(json.dumps(DEEP), "[" * 10_000 + "]" * 10_000).encode()


def _found(document: Any, at: list[Any]) -> Any:
    for step in at:
        document = json.loads(document) if step == TEXT else document[step]
    return document


def _replaced(document: Any, at: list[Any], value: Any) -> Any:
    if not at:
        return value
    step, *rest = at
    if step == TEXT:
        return json.dumps(_replaced(json.loads(document), rest, value))
    if not rest and value is _GONE:
        del document[step]
    else:
        document[step] = _replaced(document[step] if rest else None, rest, value)
    return document


# -- random changes ----------------------------------------------------------------------------------------------------


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, JSON texts in it included."""
    yield at
    if isinstance(document, dict | list):
        for step in document if isinstance(document, dict) else range(len(document)):
            yield from places(document[step], (*at, step))
    elif isinstance(document, str) and document[:1] in {"{", "["}:
        try:
            yield from places(json.loads(document), (*at, TEXT))
        except ValueError:
            return


def named_files(held: Contents) -> dict[str, bytes]:
    """All files, and the members of archives."""
    found = {}
    for name, content in held.items():
        found[name] = content
        if name.endswith((".zip", ".tdz")):
            found |= {f"{name}!{member}": inner for member, inner in members(content)[0].items()}
    return found


def random_recipe(held: Contents, draw: random.Random) -> list[Change]:
    """One change, seldom two or three."""
    return [_random_change(held, draw) for _ in range(draw.choice([1, 1, 1, 1, 1, 1, 2, 3]))]


def _random_change(held: Contents, draw: random.Random) -> Change:
    files = named_files(held)
    documents = [name for name in files if _is_document(files[name])]
    hdf5 = [name for name in files if files[name].startswith(b"\x89HDF")]
    how = draw.random()
    if documents and how < 0.6:
        return _random_document_change(draw.choice(documents), files, draw)
    if hdf5 and how < 0.5:
        return _random_attribute(draw.choice(hdf5), files, draw)
    name = draw.choice(list(files))
    if how > 0.93:
        return _random_file_change(name, files, draw)
    return _random_bytes(name, files[name], draw)


def _is_document(content: bytes) -> bool:
    return content[:1] in {b"{", b"["}


def _random_document_change(name: str, files: dict[str, bytes], draw: random.Random) -> Change:
    document = json.loads(files[name])
    every = list(places(document))
    at = list(draw.choice(every))
    how = draw.random()
    if how < 0.15 and at and at[-1] != TEXT:
        return {"do": "drop", "file": name, "at": at}
    if how < 0.25 and at and isinstance(at[-1], str) and at[-1] != TEXT:
        return {"do": "call", "file": name, "at": at, "to": draw.choice(ODD_NAMES)}
    if how < 0.27:
        return {"do": "deep", "file": name, "depth": draw.choice([100, 1_000, 100_000])}
    other = _found(document, list(draw.choice(every)))
    return {"do": "set", "file": name, "at": at, "value": _near(_found(document, at), other, draw)}


def _near(value: Any, other: Any, draw: random.Random) -> Any:
    """A value in the place of another: any, one from elsewhere in the document, or one that differs a little."""
    how = draw.random()
    if how < 0.6:
        return draw.choice(VALUES)
    if how < 0.75:
        return other
    if isinstance(value, list) and value:
        return draw.choice([value[:-1], value * 2, value[::-1], [value], [*value, draw.choice(VALUES)]])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return draw.choice([value + 1, value - 1, -value, value * 1000, float(value), str(value)])
    if isinstance(value, str):
        return draw.choice([value + "x", value[:-1], value.upper(), [value], value * 3])
    return draw.choice([str(value), [value], {"x": value}])


def _random_attribute(name: str, files: dict[str, bytes], draw: random.Random) -> Change:
    found: list[tuple[str, str | None]] = []
    with h5py.File(io.BytesIO(files[name]), "r") as file:
        for path in [*_objects(file), "/"]:
            found += [(path, attribute) for attribute in [*file[path].attrs, None]]
    path, attribute = draw.choice(found)
    known = [
        "DIMENSION_LABELS",
        "DIMENSION_LIST",
        "CLASS",
        "NAME",
        "_Netcdf4Dimid",
        "coordinates",
        "units",
        "_FillValue",
    ]
    attribute = attribute or draw.choice(
        [*known, "scale_factor", "__tensordict__", "batch_size", "_batch_size", "dtype"]
    )
    values = [value for value in VALUES if not (isinstance(value, list | str) and _unfit(value))]
    value = draw.choice(values)
    fits = not isinstance(value, int) or -(2**63) <= value < 2**64
    return {"do": "attribute", "file": name, "object": path, "name": attribute, "value": value if fits else -1}


def _unfit(value: list[Any] | str) -> bool:
    """Whether HDF5 has no such attribute."""
    return value in ([[]], [None]) or (isinstance(value, str) and ("\x00" in value or "\ud800" in value))


def _objects(group: h5py.Group) -> Iterator[str]:
    names: list[str] = []
    group.visit(names.append)
    yield from (name for name in names if isinstance(group.get(name), h5py.Group | h5py.Dataset))


def _random_file_change(name: str, files: dict[str, bytes], draw: random.Random) -> Change:
    archive, inside, _ = name.partition("!")
    how = draw.choice(["remove", "rename", "copy", *([] if inside else SPECIAL)])
    if how == "rename":
        to = draw.choice([*ODD_NAMES, f"{draw.choice(ODD_NAMES)}/zarr.json", "x//zarr.json", "/abs/zarr.json"])
        folder = archive.rpartition("/")[0]
        return {"do": how, "file": name, "to": to if inside else f"{folder}/{to}".strip("/") or "renamed"}
    if how == "copy":
        others = [other for other in files if other.partition("!")[:2] == (archive, inside)] if inside else list(files)
        others = [other for other in others if ("!" in other) == bool(inside)]
        return {"do": how, "file": name, "from": draw.choice(others)}
    return {"do": how, "file": name}


def _random_bytes(name: str, content: bytes, draw: random.Random) -> Change:
    if not content:
        return {"do": "bytes", "file": name, "at": 0, "hex": "00"}
    live = [at for at, byte in enumerate(content) if byte] if draw.random() < 0.8 else []
    at = draw.choice(live or [draw.randrange(len(content))])
    how = draw.random()
    if how < 0.12:
        return {"do": "cut", "file": name, "at": at}
    if how < 0.5:
        return {"do": "bytes", "file": name, "at": at, "hex": f"{content[at] ^ (1 << draw.randrange(8)):02x}"}
    new = draw.choice([b"\x00", b"\xff", b"\xff" * 4, b"\x00" * 8, b"\x7f", draw.randbytes(1), draw.randbytes(8)])
    over = draw.choice([len(new), len(new), len(new), 0])
    return {"do": "bytes", "file": name, "at": at, "hex": new.hex(), "over": over}
