"""The causes of tools' mistakes are named in every family, in both naming conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import faults
from faults import MISTAKES, Mistake, of, swapped_rows
from verdicts import explain, report_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import families
    from crossing_fixtures import Models
    from faults import Files
    from weightctl.verify import Report

    Array = np.ndarray[Any, Any]


def expert_copied(files: Files) -> tuple[str, ...]:
    names: list[str] = []
    for part in ("gate", "up", "down"):
        copy, copied = (of(f"mlp.experts.{number}.{part}.weight") for number in (2, 0))
        numbers = files.numbers(copied)
        if files.is_gguf:
            numbers[2] = numbers[0]
        names.append(files.put(copy, numbers))
    return tuple(names)


def experts_swapped(files: Files) -> tuple[str, ...]:
    one, other = (of(f"mlp.experts.{number}.down.weight") for number in (1, 2))
    if not files.is_gguf:
        return files.exchange(one, other)
    return (files.put(one, swapped_rows(files.numbers(one), 1, 2, 1)),)


def in_outputs(module: str, change: Callable[[Array], Array]) -> Callable[[Files], tuple[str, ...]]:
    """Return what changes the outputs of a layer, and its bias where it has one."""

    def hurt(files: Files) -> tuple[str, ...]:
        names: list[str] = []
        for kind in ("weight", "bias"):
            if files.has(of(f"{module}.{kind}")):
                array = files.numbers(of(f"{module}.{kind}"))
                is_turned = (
                    files.model.family.name == "gpt2" and not files.is_gguf and array.ndim > 1
                )
                new = change(array.T).T if is_turned else change(array)
                names.append(files.put(of(f"{module}.{kind}"), np.ascontiguousarray(new)))
        return tuple(names)

    return hurt


def key_heads_of_gpt2(array: Array) -> Array:
    """Swap the first two of 4 heads in the second third of the rows."""
    return swapped_rows(array, 4, 5, len(array) // 12)


def rows_by_turns(array: Array) -> Array:
    return np.stack(np.split(array, 2), 1).reshape(array.shape)


def norms(one: str, other: str) -> Callable[[Files], tuple[str, ...]]:
    def hurt(files: Files) -> tuple[str, ...]:
        kinds = [kind for kind in ("weight", "bias") if files.has(of(f"{one}.{kind}"))]
        return tuple(
            name
            for kind in kinds
            for name in files.exchange(of(f"{one}.{kind}"), of(f"{other}.{kind}"))
        )

    return hurt


CASES: list[tuple[str, Callable[[Files], tuple[str, ...]], str, str]] = [
    ("mixtral", expert_copied, "expert_copied", "expert 2 is a copy of expert 0"),
    ("mixtral", experts_swapped, "expert_order", "another order"),
    ("phi3", in_outputs("mlp.gate_up", rows_by_turns), "gate_and_up_interleaved", "interleaved"),
    ("gpt2", in_outputs("attention.qkv", key_heads_of_gpt2), "heads_exchanged",
     "key heads 0 and 1"),
    ("bert", in_outputs("attention.v", lambda rows: swapped_rows(rows, 1, 2, len(rows) // 4)),
     "heads_exchanged", "value heads 1 and 2"),
    ("bert", norms("attention_norm", "mlp_norm"), "norms_exchanged", "are swapped"),
    ("gemma2", norms("post_attention_norm", "post_mlp_norm"), "norms_exchanged", "are swapped"),
]  # fmt: skip


@pytest.mark.parametrize("form", ["directory", "gguf"])
@pytest.mark.parametrize(("name", "hurt", "cause", "text"), CASES)
def test_a_mistake(
    name: str,
    hurt: Callable[[Files], tuple[str, ...]],
    cause: str,
    text: str,
    form: str,
    family: Callable[[str], families.Made],
    gguf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    is_gguf = form == "gguf"
    files = faults.read(gguf(name) if is_gguf else family(name).path)
    where = hurt(files)
    path = files.write(tmp_path / ("a.gguf" if is_gguf else "a"))
    report = report_on(path, family(name).path, ["values"])
    assert {problem.where for problem in report.problems} == {*where}, explain(report)
    for problem in report.problems:
        assert problem.cause is not None, explain(report)
        assert problem.cause.name == cause, explain(report)
        assert text in problem.cause.text, explain(report)


MODEL = "tiny-llama"


def made(source: Path, out: Path, mistake: Mistake) -> tuple[Path, tuple[str, ...]]:
    files = faults.read(source)
    where = mistake.hurt(files)
    return files.write(out), where


def assert_caused(report: Report, where: tuple[str, ...], mistake: Mistake) -> None:
    """Fail where not exactly what was changed is named, each with its cause."""
    assert {problem.where for problem in report.problems} == {*where}, explain(report)
    for problem in report.problems:
        assert problem.cause is not None, explain(report)
        assert problem.cause.name == mistake.cause, explain(report)
        assert mistake.text in problem.cause.text


# What the mistake is made in, and what it is compared with; nothing is the directory in bf16.
SIDES = [("", ""), ("f32", ""), ("bf16", "Q4_K"), ("", "Q8_0")]


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize(("kind", "reference"), SIDES)
def test_a_mistake_in_a_convention(
    name: str, kind: str, reference: str, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf(MODEL, kind) if kind else healthy(MODEL)
    against = healthy.gguf(MODEL, reference) if reference else healthy(MODEL)
    path, where = made(source, tmp_path / ("a.gguf" if kind else "a"), MISTAKES[name])
    assert_caused(report_on(path, against, ["values"]), where, MISTAKES[name])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
# NaN, of which swapped bytes make many, has no place in blocks.
@pytest.mark.parametrize("name", sorted(MISTAKES.keys() - {"bytes swapped"}))
def test_a_mistake_that_was_quantized(
    name: str, kind: str, healthy: Models, tmp_path: Path
) -> None:
    path, _ = made(healthy(MODEL), tmp_path / "a", MISTAKES[name])
    quantized = healthy.converted(path, str(tmp_path / "a.gguf"), "--quant", kind)
    report = report_on(quantized, healthy(MODEL), ["values"])
    causes = {problem.cause and problem.cause.name for problem in report.problems}
    assert causes == {MISTAKES[name].cause}, explain(report)


READ_AS = [("bf16", np.float16), ("f16", ml_dtypes.bfloat16)]


@pytest.mark.parametrize(("kind", "stored"), READ_AS)
@pytest.mark.parametrize("is_widened", [False, True])
@pytest.mark.parametrize("reference", ["bf16", "Q8_0", "Q4_K"])
def test_bits_of_another_dtype(
    kind: str, stored: Any, is_widened: bool, reference: str, healthy: Models, tmp_path: Path
) -> None:
    module = of("mlp.down.weight")
    files = faults.read(healthy.gguf(MODEL, kind))
    right = faults.read(healthy.gguf(MODEL, "bf16")).numbers(module)
    misread = right.astype(stored).view(files.numbers(module).dtype)
    if is_widened:
        files = faults.read(healthy.gguf(MODEL, "f32"))
    where = files.put(module, misread)
    report = report_on(files.write(tmp_path / "a.gguf"), healthy.gguf(MODEL, reference), ["values"])
    names = {np.float16: "F16", ml_dtypes.bfloat16: "BF16"}
    text = f"those of {names[stored]} values, but were read as {kind.upper()}"
    assert_caused(report, (where,), Mistake(lambda _: (), "wrong_dtype", text))


def test_bits_of_another_dtype_are_named_after_they_were_quantized(
    healthy: Models, tmp_path: Path
) -> None:
    files = faults.read(healthy(MODEL))
    module = of("mlp.down.weight")
    files.put(module, files.numbers(module).view(np.float16))
    path = files.write(tmp_path / "a")
    quantized = healthy.converted(path, str(tmp_path / "a.gguf"), "--quant", "Q8_0")
    (problem,) = report_on(quantized, healthy(MODEL), ["values"]).problems
    assert problem.cause is not None
    assert problem.cause.name == "wrong_dtype"
