"""The code of ``docs/how-to/scaling.md`` runs as it is printed, from top to bottom."""

import re
import shutil
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "scaling.md"


def test_the_daily_job_runs_as_the_page_prints_it(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    shutil.rmtree(str(names["folder"]))
    printed = capsys.readouterr().out
    assert "((24, 24, 24, 24), (8,), (16,))" in printed
    assert "torch.Size([96]) torch.float32" in printed
    assert "torch.Size([120])" in printed
