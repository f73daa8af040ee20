"""What `weightctl ls` says of files that it refuses, and what that costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MEASURE = Path(__file__).with_name("listing_costs.py")


def measured(directory: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return what `ls` said of each file, all in one process, and what each cost."""
    paths = [str(directory / name) for name in names]
    done = subprocess.run(
        [sys.executable, str(MEASURE), *paths], capture_output=True, text=True, check=True
    )
    return {Path(line["path"]).name: line for line in json.loads(done.stdout)}


def assert_cheap(figures: dict[str, Any]) -> None:
    assert figures["seconds"] < 1
    assert figures["bytes"] < 100 << 20


def assert_one_error(figures: dict[str, Any]) -> None:
    assert (figures["code"], figures["stdout"]) == (2, "")
    assert figures["stderr"].startswith("error: ")
    assert "\nhint: " in figures["stderr"]
    assert "Traceback" not in figures["stderr"]
    assert figures["stderr"].replace("\n", "").isprintable()
