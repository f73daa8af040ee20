"""Units in the same other order on both sides of a layer are not a problem, but a note."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import faults
from faults import heads_permuted, of, swapped_rows, units_permuted
from verdicts import assert_healthy, explain, report_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import families
    from crossing_fixtures import Models
    from faults import Files

    Family = Callable[[str], families.Made]

MODEL = "tiny-llama"
SAME = "the model computes the same"
UNITS, HEADS = "inner units of its MLP", "attention heads"


def written(source: Path, out: Path, permute: Callable[..., Any], *layers: int) -> Path:
    files = faults.read(source)
    for layer in layers:
        permute(files, layer)
    return files.write(out)


def assert_noted(path: Path, reference: Path, text: str) -> None:
    """Fail where something is said to be wrong, or it is not noted why nothing is."""
    report = report_on(path, reference)
    assert_healthy(report)
    notes = [note for note in report.notes if SAME in note]
    assert len(notes) == 1, explain(report)
    assert text in notes[0]


def all_units(prefix: str, files: Files, layer: int) -> None:
    """Reverse the inner units of an MLP, in whatever form a family has it."""
    modules = files.modules(of(prefix, layer))
    for module in modules:
        part = module.removeprefix(of(prefix, layer))
        array = files.numbers(module)
        is_turned = not files.is_gguf and files.model.family.name == "gpt2" and array.ndim == 2
        rows = array.T if is_turned else array
        if part.startswith("gate_up."):
            rows = np.concatenate([half[::-1] for half in np.split(rows, 2)])
        elif part in {"gate.weight", "gate.bias", "up.weight", "up.bias"}:
            rows = rows[::-1]
        elif part == "down.weight":
            rows = rows[:, ::-1]
        files.put(module, rows.T if is_turned else rows)


@pytest.mark.parametrize("form", ["directory", "gguf"])
@pytest.mark.parametrize(("permute", "text"), [(units_permuted, UNITS), (heads_permuted, HEADS)])
def test_of_a_llama(
    permute: Callable[..., Any], text: str, form: str, healthy: Models, tmp_path: Path
) -> None:
    is_gguf = form == "gguf"
    source = healthy.gguf(MODEL, "f32") if is_gguf else healthy(MODEL)
    path = written(source, tmp_path / ("a.gguf" if is_gguf else "a"), permute, 0, 1)
    assert_noted(path, healthy(MODEL), text)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("permute", [units_permuted, heads_permuted])
def test_of_a_quantized_model(
    permute: Callable[..., Any], kind: str, healthy: Models, tmp_path: Path
) -> None:
    path = written(healthy(MODEL), tmp_path / "a", permute, 1)
    quantized = healthy.converted(path, str(tmp_path / "a.gguf"), "--quant", kind)
    assert_noted(quantized, healthy(MODEL), SAME)
    assert_noted(path, healthy.gguf(MODEL, kind), SAME)


@pytest.mark.parametrize("name", ["gpt2", "bert", "phi3", "gemma2"])
def test_of_other_families(name: str, family: Family, tmp_path: Path) -> None:
    source = family(name).path
    path = written(source, tmp_path / "a", partial(all_units, "mlp."), 0, 1)
    assert_noted(path, source, UNITS)


def test_of_one_expert(family: Family, tmp_path: Path) -> None:
    source = family("mixtral").path
    path = written(source, tmp_path / "a", partial(all_units, "mlp.experts.2."), 1)
    assert_noted(path, source, UNITS)


def experts_swapped(files: Files, layer: int, *, with_router: bool = True) -> None:
    for part in ("gate", "up", "down"):
        one, other = (of(f"mlp.experts.{number}.{part}.weight", layer) for number in (0, 3))
        if files.is_gguf:
            files.put(one, swapped_rows(files.numbers(one), 0, 3, 1))
        else:
            files.exchange(one, other)
    if with_router:
        router = of("mlp.router.weight", layer)
        files.put(router, swapped_rows(files.numbers(router), 0, 3, 1))


@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_of_experts_and_their_router(
    form: str, family: Family, gguf: Callable[..., Path], tmp_path: Path
) -> None:
    is_gguf = form == "gguf"
    source = gguf("mixtral") if is_gguf else family("mixtral").path
    path = written(source, tmp_path / ("a.gguf" if is_gguf else "a"), experts_swapped, 0, 1)
    assert_noted(path, family("mixtral").path, "experts of the layer")


@pytest.mark.parametrize(
    ("permute", "cause"),
    [
        (partial(units_permuted, with_down=False), "permuted"),
        (partial(heads_permuted, with_outputs=False), "heads_exchanged"),
    ],
)
def test_one_side_alone_is_a_problem(
    permute: Callable[..., tuple[str, ...]], cause: str, healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy(MODEL))
    where = permute(files, 1)
    report = report_on(files.write(tmp_path / "a"), healthy(MODEL), ["values"])
    assert {problem.where for problem in report.problems} == {*where}, explain(report)
    assert {each.cause and each.cause.name for each in report.problems} == {cause}, explain(report)


def test_experts_without_their_router_are_a_problem(family: Family, tmp_path: Path) -> None:
    source = family("mixtral").path
    permute = partial(experts_swapped, with_router=False)
    report = report_on(written(source, tmp_path / "a", permute, 1), source, ["values"])
    causes = {each.cause and each.cause.name for each in report.problems}
    assert causes == {"expert_order"}, explain(report)


@pytest.mark.parametrize("checks", [["forward"], ["values", "forward"]])
def test_another_fault_of_the_layer_is_blamed_alone(
    checks: list[str], healthy: Models, tmp_path: Path
) -> None:
    path = written(healthy(MODEL), tmp_path / "a", units_permuted, 1)
    files = faults.read(path)
    query = files.put(of("attention.q.weight"), -files.numbers(of("attention.q.weight")))
    report = report_on(files.write(tmp_path / "b"), healthy(MODEL), checks)
    assert {problem.where for problem in report.problems} == {query}, explain(report)


def test_a_limit_that_was_asked_for_holds_all_the_same(healthy: Models, tmp_path: Path) -> None:
    path = written(healthy(MODEL), tmp_path / "a", units_permuted, 1)
    report = report_on(path, healthy(MODEL), ["values"], max_rmse=0.1)
    causes = {each.cause and each.cause.name for each in report.problems}
    assert len(report.problems) == 3
    assert causes == {"units_permuted"}
