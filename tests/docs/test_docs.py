"""Every code block of the documentation runs as it is printed, or says why it does not.

A page is run in one namespace, in an empty folder: code cells, which the build of the docs executes too, and blocks of
``python``. Of shell blocks the lines with the command ``xarray-tensordict`` are run. A block that is not run has the line
``% not run: reason`` in front of it. A page with the line ``% slow page`` counts as a slow test.
"""

import contextlib
import io
import re
import shlex
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from xarray_tensordict.command_line.app import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)

FENCE = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^[ ]*(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL
)
NOT_RUN = re.compile(r"^% not run: \S.*\n+\Z", re.MULTILINE)
PLAIN = {"text", "json", "toml", "yaml"}
SHELL = {"sh", "bash", "console"}
PRINTED = {"scaling.md": ("((24, 24, 24, 24), (8,), (16,))", "torch.Size([96]) torch.float32", "torch.Size([120])")}
"""What the code of a page prints, among other things."""


@dataclass
class Block:
    page: Path
    line: int
    language: str
    body: str
    tags: str
    excused: bool

    @property
    def where(self):
        return f"{self.page.relative_to(DOCS)}:{self.line}"


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        info = match["info"].strip()
        directive = re.match(r"\{([\w-]+)\}\s*(\S*)", info)
        if directive and directive[1] not in {"code-cell", "code-block"}:
            continue
        language = info
        if directive:
            language = "code-cell" if directive[1] == "code-cell" else directive[2]
        body = textwrap.dedent(match["body"])
        options = re.match(r"(?::[^\n]*\n)*", body)[0] if directive else ""
        line = text.count("\n", 0, match.start()) + 1
        excused = bool(NOT_RUN.search(text[: match.start()]))
        yield Block(page, line, language, body[len(options) :], options, excused)


def run(block, namespace):
    # lines in front, so that a traceback shows the line of the page
    code = compile("\n" * block.line + block.body, str(block.page), "exec")
    if "raises-exception" in block.tags:
        with pytest.raises(Exception, match=r"\S"):
            exec(code, namespace)
    else:
        exec(code, namespace)


def run_shell(block):
    for line in block.body.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if not words:
            continue
        assert words[0] == "xarray-tensordict", (
            f"{block.where}: {line!r} cannot be run; mark it with '% not run: reason'"
        )
        assert not {"|", "&&", ">"} & set(words), (
            f"{block.where}: {line!r} needs a shell; mark it with '% not run: reason'"
        )
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, f"{block.where}: {line!r}: {result.output}"


def marks(page):
    return [pytest.mark.slow] if re.search(r"^% slow page", page.read_text(encoding="utf-8"), re.MULTILINE) else []


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(DOCS)), marks=marks(page)) for page in PAGES]
)
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace, printed = {"__name__": "__main__", "display": lambda *args: None}, io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")  # pages show warnings, too
        for block in blocks_of(page):
            if block.excused:
                continue
            if block.language in {"python", "code-cell"}:
                run(block, namespace)
            elif block.language in SHELL:
                run_shell(block)
    for words in PRINTED.get(page.name, ()):
        assert words in printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_block_is_executed_or_marked_as_not(page):
    for block in blocks_of(page):
        known = {"python", "code-cell"} | SHELL | PLAIN
        assert block.language in known or block.excused, (
            f"{block.where}: a block of {block.language!r} is neither executed nor marked with '% not run: reason'"
        )


def test_the_documentation_has_code_to_run():
    assert sum(block.language == "code-cell" for page in PAGES for block in blocks_of(page)) > 50
