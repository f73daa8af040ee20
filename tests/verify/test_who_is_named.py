"""Of a block that is off those tensors are named that are to blame, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fault_files
from verdicts import report_on, told

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from families import Made
    from healthy_models import Models


def texts(path: Path, reference: Path) -> dict[str | None, str]:
    """Return what is said of what is named."""
    report = report_on(path, reference, ["forward"])
    assert report.problems, told(report)
    return {problem.where: problem.text for problem in report.problems}


def test_one_expert_is_named_and_not_those_beside_it(
    family: Callable[[str], Made], tmp_path: Path
) -> None:
    files = fault_files.read(family("mixtral").path)
    expert = next(each for each in files.modules("layers.1.") if "experts.2." in each)
    where = files.put(expert, -files.numbers(expert))
    assert [*texts(files.write(tmp_path / "model"), family("mixtral").path)] == [where]


def test_what_was_to_blame_for_a_block_before_is_not_named_where_it_is_well(
    healthy: Models, tmp_path: Path
) -> None:
    files = fault_files.read(healthy("tiny-llama"))
    output, down = (f"layers.0.{part}.weight" for part in ("attention.o", "mlp.down"))
    for module in (output, down, "layers.1.mlp.down.weight"):
        files.put(module, files.numbers(module)[::-1])
    found = texts(files.write(tmp_path / "model"), healthy("tiny-llama"))
    assert found.keys() == {files.where(output), files.where(down)}
    assert "layers.1" in found[files.where(down)]
    assert "layers.1" not in found[files.where(output)]
