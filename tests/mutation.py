"""``make mutation``: which changes of ``core`` no test notices. The changes are mutmut's; the loop over them is here.

mutmut starts pytest anew for each mutant, which takes a hundred times as long as the tests of pure functions, and it passes over
decorated functions. So this script moves decorators behind their functions in a copy, lets mutmut write the mutants there, and calls
the tests in one process for each worker. It prints each survivor; ``tests/core/SURVIVORS.md`` says what is known of them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import io
import multiprocessing
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents

ROOT = Path(__file__).parents[1]
CORE = "src/xarray_tensordict/core"
OWN_TESTS = {
    **{name: (name,) for name in ("blocks", "naming", "unbatched_entry")},
    "metadata": ("metadata", "documents"),
    "values": ("values", "times"),
}
"""Modules with a test file of pure functions; all others are held by tests/core/test_evidence.py and test_model.py."""
AT_MOST = 5
"""Percent of mutants that may survive."""
SECONDS = 60
PYTEST = (
    "-qx --tb=no --noconftest -o addopts= -p no:cacheprovider -p no:unraisableexception -p no:threadexception -p no:xdist "
    "-W ignore::pytest.PytestAssertRewriteWarning"  # zarr is a plugin of pytest, and has been imported
)


def undecorated(source: str) -> str:
    """The same module with ``f = decorator(_f)`` behind a function in place of a decorator in front of it."""
    lines = source.splitlines()
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.decorator_list]
    for node in sorted(found, key=lambda each: each.lineno, reverse=True):
        decorator = ast.unparse(node.decorator_list[0])
        if len(node.decorator_list) > 1 or decorator in {"staticmethod", "classmethod"} or node.end_lineno is None:
            continue
        indent = " " * node.col_offset
        lines.insert(node.end_lineno, f"{indent}{node.name} = {decorator}(plain_{node.name})")
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(f"def {node.name}(", f"def plain_{node.name}(", 1)
        del lines[node.decorator_list[0].lineno - 1]
    return "\n".join(lines) + "\n"


def write_mutants(copy: Path, modules: list[str]) -> dict[str, str]:
    """Write the mutants of modules into the copy, behind switches; name of each mutant to its difference."""
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    found: dict[str, str] = {}
    for file in (copy / CORE / f"{module}.py" for module in modules):
        mutated = mutate_file_contents(str(file), undecorated(file.read_text(encoding="utf-8")))
        file.write_text(mutated.code, encoding="utf-8")
        lines = mutated.code.splitlines()
        functions = {
            node.name: lines[node.lineno : node.end_lineno]
            for node in ast.walk(ast.parse(mutated.code))
            if isinstance(node, ast.FunctionDef)
        }
        for name in mutated.mutant_names:
            changed, original = functions[name], functions[name.rpartition("__mutmut_")[0] + "__mutmut_orig"]
            difference = [
                line
                for line in difflib.unified_diff(original, changed, n=0, lineterm="")
                if line[:2] not in ("--", "++", "@@")
            ]
            found[f"xarray_tensordict.core.{file.stem}.{name}"] = "\n".join(difference)
    return found


def prepare(copy: Path) -> None:
    """Import the tests of the copy."""
    os.environ["MUTANT_UNDER_TEST"] = ""
    os.chdir(copy)
    sys.path[:0] = [str(copy / folder) for folder in ("src", "tests/core", "tests/support")]
    run_tests("model")
    for module in OWN_TESTS:
        run_tests(module)


def run_tests(module: str) -> None:
    """Run the tests of one module; raises where one fails."""
    import pytest
    import test_evidence

    from xarray_tensordict.core import voting

    for each in vars(voting).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()
    if module not in OWN_TESTS:
        for name, test in vars(test_evidence).items():
            if name.startswith("test_") and "order" not in name and "kind" not in name:
                test()
        for order in (1, -1):
            test_evidence.test_the_words_do_not_depend_on_the_order_of_the_arrays(order)
    own = ("model",) if module == "model" else OWN_TESTS.get(module, ())
    if own:
        with contextlib.redirect_stdout(io.StringIO()):
            code = pytest.main([*PYTEST.split(), *(f"tests/core/test_{name}.py" for name in own)])
        if code:
            raise AssertionError


def survives(name: str) -> bool:
    """Whether no test notices a mutant."""

    def too_long(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    os.environ["MUTANT_UNDER_TEST"] = name
    try:
        run_tests(name.split(".")[2])
    except BaseException:  # a mutant may raise anything, SystemExit and the failures of pytest included
        return False
    else:
        return True
    finally:
        signal.alarm(0)
        os.environ["MUTANT_UNDER_TEST"] = ""


def main() -> int:
    """Write the mutants, run the tests on each, and print those that survive."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("modules", nargs="*", default=sorted(file.stem for file in (ROOT / CORE).glob("[a-z]*.py")))
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutation")
    options = parser.parse_args()
    copy = options.folder.resolve()
    found = write_mutants(copy, options.modules)
    names = list(found)
    prepare(copy)
    print(f"{len(names)} mutants", flush=True)
    survivors, start = [], time.time()
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        for number, (name, alive) in enumerate(zip(names, pool.imap(survives, names, 8), strict=True), 1):
            if alive:
                survivors.append(name)
                print(f"{name}\n{found[name]}", flush=True)
            if number % 200 == 0:
                print(f"-- {number} of {len(names)}, {len(survivors)} survive, {time.time() - start:.0f} s", flush=True)
    share = 100 * len(survivors) / max(len(names), 1)
    print(f"{len(names)} mutants, {len(survivors)} survive ({share:.1f} %), {time.time() - start:.0f} s")
    return int(share > AT_MOST)


if __name__ == "__main__":
    sys.exit(main())
