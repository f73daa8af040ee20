"""The models that faults are put into, and what `weightctl convert` makes of them.

Each is made once for all workers of a run. Conversions run in this process: a process of its own
takes longer to start than these take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = ("tiny-llama", "gpt2", "bert")
MODELS = (*SMALL, "smollm2")
CONVERSIONS: dict[str, tuple[str, ...]] = {
    "bf16": ("--dtype", "bf16"),
    "f16": ("--dtype", "f16"),
    "f32": ("--dtype", "f32"),
    **{kind: ("--quant", kind) for kind in ("Q8_0", "Q6_K", "Q4_K", "Q4_0")},
}


class Models:
    """Where the healthy checkpoints are."""

    def __init__(self, directory: Path, tiny_llama: Path, smollm2: Callable[[], Path]) -> None:
        self._directory = directory
        self._tiny_llama = tiny_llama
        self._smollm2 = smollm2

    def __call__(self, model: str) -> Path:
        """Return a model's directory, as transformers has it, in bf16."""
        if model == "tiny-llama":
            return self._tiny_llama
        if model == "smollm2":
            return self.converted(self._smollm2(), "smollm2-bf16-hf", "--dtype", "bf16")
        import families  # and with it torch, which most tests do without

        return families.made(model, self._directory).bf16

    def gguf(self, model: str, kind: str = "bf16") -> Path:
        """Return what a model becomes as a GGUF file."""
        name = f"{model}-healthy-{kind}.gguf"
        return self.converted(self(model), name, *CONVERSIONS[kind])

    def directory(self, model: str, kind: str) -> Path:
        """Return what a model's GGUF file becomes as a directory of numbers in float32."""
        gguf = self.gguf(model, kind)
        return self.converted(gguf, f"{model}-healthy-{kind}-back", "--dtype", "f32")

    def converted(self, source: Path, name: str, *arguments: str) -> Path:
        """Convert a checkpoint; each result is made once."""
        import families
        from weightctl.cli import app

        def make(half: Path) -> None:
            given = ["convert", str(source), str(half), "-q", *arguments]
            assert not app(given, standalone_mode=False)

        return families.once(self._directory / name, make)


@pytest.fixture(scope="session")
def healthy(crossed: Path, tiny_llama: Path, request: pytest.FixtureRequest) -> Models:
    """Return the models; the real one is fetched where it is asked for."""
    return Models(crossed, tiny_llama, lambda: request.getfixturevalue("smollm2"))
