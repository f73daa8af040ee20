"""In a block that differs, only the tensors that cause the difference are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import faults
from faults import inject
from verdicts import explain, report_on
from weightctl.verify import Explanation, Request, Subject, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crossing_fixtures import Models
    from families import Made


def texts(path: Path, reference: Path) -> dict[str | None, str]:
    """Return what is said of what is named."""
    report = report_on(path, reference, ["forward"])
    assert report.problems, explain(report)
    return {problem.where: problem.text for problem in report.problems}


def test_every_problem_says_which_check_found_it(healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "zeroed")
    report = report_on(injected.path, healthy("tiny-llama"))
    found = {name: result.problems for name, result in report.results.items() if result.problems}
    assert found.keys() == {"finite", "values", "forward"}
    assert all({each.check for each in found[name]} == {name} for name in found)


def test_one_expert_is_named_and_not_those_beside_it(
    family: Callable[[str], Made], tmp_path: Path
) -> None:
    files = faults.read(family("mixtral").path)
    expert = next(each for each in files.modules("layers.1.") if "experts.2." in each)
    where = files.put(expert, -files.numbers(expert))
    assert [*texts(files.write(tmp_path / "model"), family("mixtral").path)] == [where]


def test_what_the_check_of_values_has_found_is_not_looked_for_again(
    healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "zeroed")
    request = Request(
        subject=Subject(injected.path), reference=Subject(healthy("tiny-llama")), tokens=(5, 6, 7)
    )
    (found,) = verify(request, ["values"]).problems
    pairs = {pair.name: pair for pair in request.pairing.pairs}
    assert request.pairing.within.keys() == request.pairing.by_module.keys()
    assert request.pairing.causes == {pairs[found.where].module: found.cause}
    # As if it had been another.
    request.pairing.causes[pairs[found.where].module] = Explanation("told", "so it was told")
    (again,) = verify(request, ["forward"]).problems
    assert (again.where, again.cause) == (found.where, ("told", "so it was told"))


def test_what_was_to_blame_for_a_block_before_is_not_named_where_it_is_well(
    healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy("tiny-llama"))
    output, down = (f"layers.0.{part}.weight" for part in ("attention.o", "mlp.down"))
    later = "layers.1.mlp.down.weight"
    for module in (output, down, later):
        files.put(module, files.numbers(module)[::-1])
    found = texts(files.write(tmp_path / "model"), healthy("tiny-llama"))
    both = f"`{files.where(output)}` and `{files.where(down)}` are replaced by those of the"
    assert found.keys() == {files.where(each) for each in (output, down, later)}
    assert all(both in found[files.where(each)] for each in (output, down))
    assert found[files.where(later)].endswith(
        "; it matches if this tensor is replaced by that of the reference"
    )


@pytest.mark.parametrize(("layers", "count"), [(1, 2), (3, 1)])
def test_tensors_with_one_cause_count_the_same_in_values_and_forward(
    layers: int, count: int, healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy("tiny-llama"))
    for layer in range(layers):
        gate, up = (f"layers.{layer}.mlp.{part}.weight" for part in ("gate", "up"))
        numbers = [files.numbers(each) for each in (gate, up)]
        for each, swapped in zip((up, gate), numbers, strict=True):
            files.put(each, swapped)
    path = files.write(tmp_path / "model")
    report = report_on(path, healthy("tiny-llama"), ["values", "forward"])
    counts = [len(result.problems) for result in report.results.values()]
    assert counts == [count, count], explain(report)
