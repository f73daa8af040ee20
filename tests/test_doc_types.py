"""The Python examples of the documentation pass a type checker, as the files of users do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"^```(?:python|py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.long
def test_the_examples_of_the_page_on_python_have_no_type_errors(tmp_path: Path) -> None:
    examples = EXAMPLE.findall((ROOT / "docs" / "python.md").read_text())
    for number, text in enumerate(examples):
        (tmp_path / f"example_{number}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"MYPYPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.startswith(f"Success: no issues found in {len(examples)} source files")
