"""README, docs and notebooks use the words of the field: outside code, none of these words of our own appears."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
    *sorted((ROOT / "notebooks").glob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]

# The word, and what to write in its place.
INSTEAD = {
    r"doors?": "opens with xarray and with tensordict",
    r"pieces?": "chunk",
    r"foreign": "of other tools",
    r"leads|(?:not|to|that|all|must|each|which|arrays) lead(?! out)|lead with": "is the first dimension of, starts with",
    r"bare": "plain",
    r"told|tells?": "passed, shows, names",
    r"said|says? so|say (?:what|which|that|yes|otherwise)": "shown, pass it",
    r"wanted|whoever|whatever|somebody|nobody": "name who does it, or what is expected",
    r"what is there|that is there|what is asked|what there is": "existing",
    r"what becomes of|no word of|without a word|a word about|the last word": "name what happens",
    r"as ever|as it should be|all the same|honestly|swallow\w*|bend|in silence": "write it plainly",
    r"\w+n['’]t|it['’]s|['’]re|['’]ll": "no contractions",
}
NOT_PROSE = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)[ ]*$"  # code, and directives with nothing but code
    r"|\A---\n.*?^---$|<!--.*?-->"
    r"|`[^`\n]*`"
    r"|\]\([^)\n]*\)"  # targets of links
    r"|^%.*?$|^:[\w-]+:.*?$",
    re.MULTILINE | re.DOTALL,
)


def prose(page):
    """The text of a page, line by line as it is there, with blanks in place of code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_field(page):
    found = [
        f"{page.relative_to(ROOT)}:{number}: {match[0]!r} in {line.strip()!r}; write: {instead}"
        for number, line in enumerate(prose(page).splitlines(), 1)
        for word, instead in INSTEAD.items()
        for match in [re.search(rf"(?<![\w-])(?:{word})(?![\w-])", line, re.IGNORECASE)]
        if match
    ]
    assert not found, "\n".join(found)


def test_the_words_are_found_in_prose_and_not_in_code(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Both doors.\n\n`door`\n\n```sh\ndoor\n```\n\n[a](door.md)\n")
    assert re.findall("doors?", prose(page)) == ["doors"]
