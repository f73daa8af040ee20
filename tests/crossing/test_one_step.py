"""A quantized GGUF is the same, whether a plain GGUF was written first or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import families

RECIPE = ("--quant", "Q4_K_M")


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma3", "gpt2"])
def test_one_step_makes_the_bytes_that_two_make(
    name: str,
    family: Callable[[str], families.Made],
    gguf: Callable[..., Path],
    converted: Callable[..., Path],
) -> None:
    one = converted(family(name).bf16, f"{name}-one-step.gguf", *RECIPE)
    two = converted(gguf(name, "bf16"), f"{name}-two-steps.gguf", *RECIPE)
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size < gguf(name, "bf16").stat().st_size / 2


def test_one_step_makes_the_bytes_that_two_make_of_a_model_that_was_trained(
    tiny_llama: Path, converted: Callable[..., Path]
) -> None:
    one = converted(tiny_llama, "tiny-one-step.gguf", *RECIPE)
    plain = converted(tiny_llama, "tiny-bf16.gguf")
    two = converted(plain, "tiny-two-steps.gguf", *RECIPE)
    assert one.read_bytes() == two.read_bytes()
