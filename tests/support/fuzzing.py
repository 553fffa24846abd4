"""Open mutants of small stores in every way, in workers that may die, and judge what came of it.

    python tests/support/fuzzing.py --count 20000 --seed 1 [--kinds zarr3 hdf5] [--report found.json]

A finding is one of

- ``crash``: the worker died of a signal. ``crash of h5py``: so does one that reads the file with h5py alone.
- ``hang``: one mutant took more than `SECONDS` of CPU, or `WALL` seconds. ``hang of h5py`` as above.
- ``unclassed``: an exception that is neither an ``OSError`` nor a ``ValueError``. The arguments are right, so that a ``TypeError``
  or ``KeyError`` is no answer either; nor is a ``MemoryError``: the file is small.
- ``unnamed``: the message of an error does not have the name of the store.
- ``changed``: an entry has other values, and neither its bytes nor its own metadata were changed.
- ``lost``: such an entry is not there, and neither a warning nor an error names it.
- ``libraries``: the two ways of opening, or rows and the whole, give different values.
- ``escape``: the command prints a control character that the store holds.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click.testing
import h5py
import numpy as np
import xarray as xr

import fuzz_stores
import mutants
from xarray_tensordict import open_persistent
from xarray_tensordict.command_line.app import main as command
from xarray_tensordict.testing import assert_same_tensordict

SECONDS, WALL, BATCH = 10, 20, 50
MEMORY = 2 << 30
"""What a worker may take beyond what it has when it starts."""

Finding = dict[str, Any]


@dataclass
class Kind:
    """The store of a kind: its files, what is opened, and what it gives where nothing is changed."""

    name: str
    folder: Path
    target: str
    held: mutants.Contents
    values: dict[str, str] = field(default_factory=dict)

    @classmethod
    def built(cls, name: str, folder: Path) -> Kind:
        path = fuzz_stores.build(name, folder)
        return cls(name, folder, path.relative_to(folder).as_posix(), mutants.contents(folder))


# -- what one mutant gives ---------------------------------------------------------------------------------------------


def digest(values: Any) -> str:
    values = np.asarray(values)
    values = values.astype(object) if values.dtype.kind in "UT" else values  # text is text
    content = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
    return f"{values.dtype}{values.shape}{hashlib.md5(content).hexdigest()[:8]}"


def dataset(path: str) -> tuple[Any, dict[str, str]]:
    with xr.open_dataset(path, engine="tensordict") as ds:
        found = {str(name): digest(variable.values) for name, variable in ds.variables.items()}
        return ds.td.to_tensordict(), found


def persistent(path: str) -> Any:
    ptd = open_persistent(path)
    try:
        whole = ptd.to_tensordict()
        if whole.batch_size and whole.batch_size[0]:
            rows = [whole.batch_size[0] - 1, 0]
            assert_same_tensordict(whole[rows], ptd[rows].to_tensordict())
            assert_same_tensordict(whole[0], ptd[0].to_tensordict())
        return whole
    finally:
        ptd.close()


def datatree(path: str) -> None:
    with xr.open_datatree(path, engine="tensordict") as tree:
        tree.load()


def inspected(path: str) -> Finding | None:
    """The command, which says itself what is wrong, and ends with 1."""
    result = click.testing.CliRunner().invoke(command, ["inspect", path])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    control = re.search(r".{0,60}[\x00-\x08\x0b-\x1f\x7f-\x9f].{0,20}", result.output)
    if control:
        return {"what": "escape", "message": repr(control[0])}
    if result.exit_code and Path(path).name not in result.output:
        return {"what": "unnamed", "message": result.output.splitlines()[0][:200] if result.output else ""}
    return None


def examine(path: Path, original: Kind, changed: Callable[[str], bool]) -> Iterator[Finding]:
    """What is wrong with what the package does with a store."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found: dict[str, Any] = {}
        for name, way in {
            "dataset": dataset,
            "persistent": persistent,
            "datatree": datatree,
            "inspect": inspected,
        }.items():
            try:
                found[name] = way(str(path))
            except AssertionError as error:
                yield {"way": name, "what": "libraries", "message": str(error)[:300]}
            except BaseException as error:
                yield from judged(name, error, path)
    if found.get("inspect"):
        yield {"way": "inspect", **found["inspect"]}
    if "dataset" not in found:
        return
    td, values = found["dataset"]
    if found.get("persistent") is not None:
        try:
            assert_same_tensordict(td, found["persistent"])
        except AssertionError as error:
            yield {"way": "both", "what": "libraries", "message": str(error)[:300]}
    said = " ".join(str(warning.message) for warning in caught)
    for name, before in original.values.items():
        if values.get(name) != before and not changed(name):
            if name in values:
                yield {"way": "dataset", "what": "changed", "message": f"{name}: {before} became {values[name]}"}
            elif repr(name) not in said and name.partition("/")[0] not in said and "'/'" not in said:
                yield {"way": "dataset", "what": "lost", "message": f"{name}; warned: {said[:200]!r}"}


def judged(way: str, error: BaseException, path: Path) -> Iterator[Finding]:
    message = f"{type(error).__name__}: {error}"
    if not isinstance(error, OSError | ValueError):
        yield {"way": way, "what": "unclassed", "message": message[:300], "where": _raised_at(error)}
    elif path.name not in message:
        yield {"way": way, "what": "unnamed", "message": message[:300], "where": _raised_at(error)}


def _raised_at(error: BaseException) -> str:
    """The last line of this package, and the very last one, in the traceback."""
    lines, at = [], error.__traceback__
    while at is not None:
        lines.append(
            f"{at.tb_frame.f_code.co_filename.partition('site-packages/')[2] or at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
        )
        at = at.tb_next
    own = [line.partition("src/xarray_tensordict")[2] for line in lines if "src/xarray_tensordict" in line]
    return f"{own[-1] if own else ''} {lines[-1] if lines else ''}"


# -- which entries were not changed ------------------------------------------------------------------------------------


def changes_of(kind: Kind, held: mutants.Contents, path: Path) -> Callable[[str], bool]:
    """Whether an entry of a Dataset was changed: its bytes, its own metadata, or (where it can be named by them) those above."""
    if kind.target.endswith((".h5", ".nc")):
        return _ChangedInHDF5(kind.folder / kind.target, path, kind.values)
    try:
        before, after = _parts(kind.held), _parts(held)
    except Exception:
        return lambda entry: True
    differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    def changed(entry: str) -> bool:
        own = [name for name in before if f"/{entry}/" in name or name.endswith(f"/{entry}.memmap")]
        folder = entry.rpartition("/")[0]
        above = ["/meta.json"] if "/" not in entry else [f"/{folder}/meta.json"]
        return not own or any(
            f"/{entry}/" in name
            or f"/{entry}." in name
            or name.endswith(("/.zmetadata", "_metadata.json", *above))
            or _is_shared(name, entry)
            for name in differ
        )

    return changed


def _is_shared(name: str, entry: str) -> bool:
    """Whether a file says what arrays below it are: consolidated metadata, or a group on the way to the entry."""
    folder, _, file = name.rpartition("/")
    above = folder.split("/", 1)[1] if "/" in folder else ""
    return file in {"zarr.json", ".zgroup", ".zattrs", "meta.json"} and (not above or entry.startswith(f"{above}/"))


def _parts(held: mutants.Contents) -> dict[str, Any]:
    """The files, those in archives by their names there, and the references of kerchunk."""
    found: dict[str, Any] = {}
    for name, content in held.items():
        if name.endswith((".zip", ".tdz")):
            found |= {f"{name}/{member}": inner for member, inner in mutants.members(content)[0].items()}
        elif name.endswith("refs.json"):
            found |= {f"{name}/{key}": reference for key, reference in json.loads(content)["refs"].items()}
        else:
            found[name] = content
    return found


class _ChangedInHDF5:
    """Whether h5py reads other values or attributes of an entry; it is asked once, in a process that may die of it."""

    def __init__(self, before: Path, after: Path, entries: Iterable[str]) -> None:
        self.before, self.after, self.entries = before, after, list(entries)

    @cached_property
    def same(self) -> list[str]:
        target = self.after.parent / "same.json"
        _in_a_fork(
            lambda: target.write_text(json.dumps([name for name in self.entries if self._is_same(name)])) and None
        )
        return json.loads(target.read_text()) if target.exists() else []

    def _is_same(self, entry: str) -> bool:
        try:
            return _plain_hdf5(self.before, entry) == _plain_hdf5(self.after, entry)
        except Exception:
            return False

    def __call__(self, entry: str) -> bool:
        return entry not in self.same


def _plain_hdf5(path: Path, entry: str) -> Any:
    """An entry, and the attributes of the groups above it, as h5py reads them."""
    with h5py.File(path, "r") as file:
        chain = entry.split("/")
        above = [_attributes(file["/".join(chain[:count]) or "/"]) for count in range(len(chain))]
        found = file[entry]
        text = h5py.check_string_dtype(found.dtype)
        return repr((found.dtype, text, found.shape, found.fillvalue, digest(found[()]), above, _attributes(found)))


def _attributes(found: Any) -> list[tuple[str, str]]:
    """The attributes; those in which HDF5 keeps the dimension scales hold addresses of the file."""
    return [
        (name, repr(found.attrs[name])) for name in sorted(found.attrs) if "LIST" not in name and "Dimid" not in name
    ]


def read_with_h5py(folder: Path) -> None:
    for path in (file for file in sorted(folder.rglob("*")) if file.suffix in {".h5", ".nc"}):
        with h5py.File(path, "r") as file:
            names: list[str] = []
            with contextlib.suppress(Exception):
                file.visit(names.append)
            for name in names:
                with contextlib.suppress(Exception):
                    found = file[name]
                    dict(found.attrs)
                    found[()]


def _in_a_fork(function: Callable[[], Any]) -> int:
    """The exit code of a process that calls a function: 0 where it gave nothing, 1 for True or an exception, < 0 for a signal."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            limit_time()
            code = int(bool(function()))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- workers -----------------------------------------------------------------------------------------------------------


def limit_time() -> None:
    """From now on so much time; the process dies when it is over, wherever it is."""
    for timer, number, seconds in (
        (signal.ITIMER_PROF, signal.SIGPROF, SECONDS),
        (signal.ITIMER_REAL, signal.SIGALRM, WALL),
    ):
        signal.signal(number, signal.SIG_DFL)
        signal.setitimer(timer, seconds)


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(kind: Kind, recipes: list[list[mutants.Change]], scratch: Path, out: int) -> None:
    """Examine mutants one after the other; say of each that it is begun, and what was found."""
    limit_memory()
    for stream in (1, 2):  # libraries print to them
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    limit_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind.values = dataset(str(kind.folder / kind.target))[1]
    for number, recipe in enumerate(recipes):
        folder = scratch / "mutant"
        shutil.rmtree(folder, ignore_errors=True)
        os.write(out, f"{number}\n".encode())
        with contextlib.suppress(Exception):
            held = mutants.apply(kind.held, recipe)
            mutants.write(held, folder)
            limit_time()
            path = folder / kind.target
            found = list(examine(path, kind, changes_of(kind, held, path)))
            os.write(out, (json.dumps([number, found]) + "\n").encode())


def run(kind: Kind, recipes: list[list[mutants.Change]], scratch: Path) -> tuple[list[Finding], Any]:
    """Examine mutants in a worker; the mutant at which it died, and None where it lived."""
    read, out = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(read)
            work(kind, recipes, scratch, out)
            code = 0
        finally:
            os._exit(code)
    os.close(out)
    with os.fdopen(read) as lines:
        said = [json.loads(line) for line in lines]
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found = [
        {**finding, "recipe": recipes[number]}
        for number, findings in (s for s in said if isinstance(s, list))
        for finding in findings
    ]
    return found, _died(code, [s for s in said if isinstance(s, int)], len(recipes))


def _died(code: int, begun: list[int], count: int) -> Any:
    if code == 0:
        return None
    if not begun and count:
        raise RuntimeError(f"a worker ended with {code} before its first mutant")
    return begun[-1], "hang" if -code in {signal.SIGPROF, signal.SIGALRM} else "crash", code


def examine_all(kind: Kind, recipes: list[list[mutants.Change]], scratch: Path) -> Iterator[Finding]:
    """Examine mutants in batches; a worker that dies is followed by another, behind the mutant it died of."""
    while recipes:
        found, died = run(kind, recipes[:BATCH], scratch)
        yield from found
        if died is None:
            recipes = recipes[BATCH:]
            continue
        number, what, code = died
        _, again = run(kind, [recipes[number]], scratch) if len(recipes) > 1 else (None, died)
        alone = read_alone(scratch / "mutant") if again else " of a worker, not of the mutant alone"
        yield {"way": "", "what": what + alone, "message": f"exit code {code}", "recipe": recipes[number]}
        recipes = recipes[number + 1 :]


def read_alone(folder: Path) -> str:
    return " of h5py" if _in_a_fork(lambda: read_with_h5py(folder)) < 0 else ""


# -- a run -------------------------------------------------------------------------------------------------------------


def recipes_of(kind: Kind, seed: int, count: int) -> list[list[mutants.Change]]:
    """Random recipes that can be applied; the same seed gives the same ones."""
    draw, found = random.Random(f"{kind.name} {seed}"), []
    while len(found) < count:
        recipe = mutants.random_recipe(kind.held, draw)
        with contextlib.suppress(Exception):  # the second change of what the first has removed
            if mutants.apply(kind.held, recipe) != kind.held:
                found.append(recipe)
    return found


def fuzz(kinds: list[str], count: int, seed: int, corpus: list[Finding] | None, scratch: Path) -> Iterator[Finding]:
    """Findings in so many mutants of all kinds together, or in those of a corpus."""
    for position, name in enumerate(kinds):
        began = time.monotonic()
        folder = scratch / name
        kind = Kind.built(name, folder) if name != "icechunk" else _built_apart(name, folder)
        if corpus is not None:
            recipes = [each["recipe"] for each in corpus if each["kind"] == name]
        else:
            recipes = recipes_of(kind, seed, count // len(kinds) + (position < count % len(kinds)))
        counted = 0
        for finding in examine_all(kind, recipes, scratch):
            counted += 1
            yield {"kind": name, **finding}
        print(
            f"{name}: {len(recipes)} mutants, {counted} findings, {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def _built_apart(name: str, folder: Path) -> Kind:
    """Built in a process of its own: its threads do not survive a fork."""
    if _in_a_fork(lambda: Kind.built(name, folder) and None):
        raise RuntimeError(f"the store {name} was not written")
    (target,) = os.listdir(folder)
    return Kind(name, folder, target, mutants.contents(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(fuzz_stores.KINDS))
    parser.add_argument("--corpus", type=Path, help="a file of recipes to examine instead of random ones")
    parser.add_argument("--recipe", type=json.loads, help='one of them: {"kind": "zarr3", "recipe": [...]}')
    parser.add_argument("--report", type=Path, help="a file for the findings, one JSON a line")
    given = parser.parse_args()
    corpus = json.loads(given.corpus.read_text()) if given.corpus else [given.recipe] if given.recipe else None
    if corpus is not None:
        given.kinds = sorted({each["kind"] for each in corpus})
    scratch = Path(tempfile.mkdtemp())
    totals: Counter[str] = Counter()
    with open(given.report, "w") if given.report else contextlib.nullcontext(io.StringIO()) as report:
        for finding in fuzz(given.kinds, given.count, given.seed, corpus, scratch):
            totals[finding["what"]] += 1
            report.write(json.dumps(finding) + "\n")
            report.flush()
            if corpus:
                print(json.dumps(finding, indent=1))
    shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(totals))


if __name__ == "__main__":
    main()
