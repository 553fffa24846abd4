"""Each message that the page "Questions, by error message" quotes is one of the source."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8").partition("## Messages of other libraries")[0]
QUOTED = re.findall(r"^`([^\n]+)`\n: ", PAGE, re.MULTILINE)


def texts_of(tree):
    """All texts of a module, `…` where a value goes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def texts():
    return [text for path in (ROOT / "src").rglob("*.py") for text in texts_of(ast.parse(path.read_text("utf-8")))]


@pytest.mark.parametrize("message", QUOTED)
def test_the_message_is_one_of_the_source(texts, message):
    # what the page gives as … may be written out in the source
    pattern = re.compile(".*".join(map(re.escape, message.split("…"))), re.DOTALL)
    assert any(pattern.search(text) for text in texts), f"no message of the source starts with {message!r}"


def test_the_page_quotes_messages():
    assert len(QUOTED) > 10
