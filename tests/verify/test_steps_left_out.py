"""If a conversion omits one of its steps, the step and the place are named."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import faults
from faults import Injected, inject
from verdicts import assert_named, report_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import families
    from faults import Files

PERMUTED = "q and k permuted everywhere"
FORMS = ["gguf", "directory"]
SQUARE, NOT_SQUARE = ("attention.o.weight",), (".qkv.weight", ".up.weight", ".down.weight")


def cases(soon: dict[str, tuple[str, ...]]) -> list[Any]:
    """Return families in both forms; those that are not to be looked at soon take long."""
    return [
        pytest.param(name, form, marks=() if form in forms else pytest.mark.long)
        for name, forms in soon.items()
        for form in FORMS
    ]


def left_out(
    source: Path, out: Path, forget: Callable[[Files], tuple[str, ...]], cause: str
) -> Injected:
    """Write what a conversion would have made that forgets something."""
    files = faults.read(source)
    where = forget(files)
    assert where
    return Injected(files.write(out), where, cause)


@pytest.fixture
def sides(
    family: Callable[[str], families.Made], gguf: Callable[..., Path], tmp_path: Path
) -> Callable[[str, str], tuple[Path, Path, Path]]:
    """Return the right result, where a wrong one goes, and what both are made of."""

    def give(name: str, form: str) -> tuple[Path, Path, Path]:
        directory, file = family(name).path, gguf(name)
        if form == "gguf":
            return file, tmp_path / "wrong.gguf", directory
        return directory, tmp_path / "wrong", file

    return give


def norms_as_they_were(files: Files) -> tuple[str, ...]:
    """Leave out the 1 that GGUF's norms of Gemma are more than those of transformers."""
    one = -1 if files.is_gguf else 1
    modules = [module for module in files.modules("") if "norm" in module]
    return tuple(files.put(module, files.numbers(module) + one) for module in modules)


def matrices_as_they_were(ends: tuple[str, ...], files: Files) -> tuple[str, ...]:
    modules = [module for module in files.modules("") if module.endswith(ends)]
    return tuple(
        files.put(module, np.ascontiguousarray(files.numbers(module).T)) for module in modules
    )


def experts_in_another_order(files: Files) -> tuple[str, ...]:
    ours: Any = files.ours
    count = ours.experts
    changed: list[str] = []
    for layer in range(ours.layers):
        for part in ("gate", "up", "down"):
            first, *others = [
                module
                for module in files.modules(f"layers.{layer}.")
                if module.endswith(f".{part}.weight") and "experts" in module
            ]
            assert len(others) == count - 1
            if files.is_gguf:
                changed.append(files.put(first, np.roll(files.numbers(first), 1, 0)))
            else:
                numbers = [files.numbers(each) for each in (first, *others)]
                changed += map(files.put, (*others, first), numbers)
    return tuple(changed)


@pytest.mark.parametrize(
    ("name", "form"),
    cases({"llama": ("gguf", "directory"), "mistral": ("gguf",), "mixtral": ()}),
)
def test_the_permutation_of_rotated_rows(
    name: str, form: str, sides: Callable[[str, str], tuple[Path, Path, Path]]
) -> None:
    right, wrong, made_of = sides(name, form)
    injected = inject(right, wrong, PERMUTED)
    assert_named(report_on(injected.path, made_of), injected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ends", [SQUARE, NOT_SQUARE], ids=["square", "not square"])
def test_the_transposing_of_matrices(
    ends: tuple[str, ...], form: str, sides: Callable[[str, str], tuple[Path, Path, Path]]
) -> None:
    right, wrong, made_of = sides("gpt2", form)
    injected = left_out(right, wrong, partial(matrices_as_they_were, ends), "transposed")
    assert_named(report_on(injected.path, made_of), injected)


@pytest.mark.parametrize(
    ("name", "form"), cases({"gemma2": ("gguf", "directory"), "gemma3": ("gguf",)})
)
def test_the_one_of_norms(
    name: str, form: str, sides: Callable[[str, str], tuple[Path, Path, Path]]
) -> None:
    right, wrong, made_of = sides(name, form)
    injected = left_out(right, wrong, norms_as_they_were, "norm_offset")
    assert_named(report_on(injected.path, made_of), injected)


@pytest.mark.parametrize(
    ("name", "form"), cases({"mixtral": ("gguf",), "qwen3moe": ("directory",)})
)
def test_the_order_of_experts(
    name: str, form: str, sides: Callable[[str, str], tuple[Path, Path, Path]]
) -> None:
    right, wrong, made_of = sides(name, form)
    injected = left_out(right, wrong, experts_in_another_order, "expert_order")
    assert_named(report_on(injected.path, made_of), injected)
