"""The page "Security" says nothing that no test holds."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
ITEMS = re.findall(r"^- (.*?)(?=\n- |\n\n)", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item[:40])
def test_each_statement_names_tests_that_there_are(item: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", item)
    assert named
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE), name


def test_the_page_has_statements() -> None:
    assert len(ITEMS) > 20
