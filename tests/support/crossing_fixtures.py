"""Checkpoints of each family, and what the command makes of them, each once for all workers."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from once import once, shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import families
    from conftest import Completed


NO_POOLING = 0


@pytest.fixture(scope="session")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of what is made; all workers share it."""
    return shared(tmp_path_factory) / "crossed"


@pytest.fixture(scope="session")
def family(crossed: Path) -> Callable[[str], families.Made]:
    import families  # and with it torch, which most tests do without

    return lambda name: families.made(name, crossed)


@pytest.fixture(scope="session")
def converted(weightctl: Callable[..., Completed], crossed: Path) -> Callable[..., Path]:
    """Convert a checkpoint as a user does; each result is made once."""

    def convert(source: Path, name: str, *arguments: str) -> Path:
        def make(half: Path) -> None:
            # The name's end says what the output is, and a half-made one has the same.
            done = weightctl("convert", source, half, *arguments)
            assert done.returncode == 0, done.stderr

        return once(crossed / name, make)

    return convert


@pytest.fixture(scope="session")
def gguf(
    family: Callable[[str], families.Made], converted: Callable[..., Path]
) -> Callable[..., Path]:
    """Return a family's checkpoint as a GGUF file, in the dtype that it has."""
    return lambda name, dtype="f32": converted(
        family(name).path.with_name(dtype), f"{name}-{dtype}.gguf"
    )


@pytest.fixture(scope="session")
def llama_output(
    family: Callable[[str], families.Made], gguf: Callable[..., Path], crossed: Path
) -> Callable[[str], families.Said]:
    """Return what llama.cpp says of a family's GGUF file, in float32."""
    import families
    from llama_cpp import ask

    def say(name: str) -> families.Said:
        path = crossed / f"{name}.said"
        once(path, lambda half: half.write_bytes(pickle.dumps(ask_about(name))))
        return pickle.loads(path.read_bytes())

    def ask_about(name: str) -> families.Said:
        made, is_encoder = family(name), name not in families.CAUSAL
        asked = (
            [("embeddings", made.prompt)]
            if is_encoder
            else [("logits", made.tokens), ("generate", made.prompt, families.GENERATED)]
        )
        numbers, *follows, tokens, plain = ask(
            gguf(name),
            *asked,
            ("tokenize", families.FAMILIES[name].text),
            ("tokenize", families.FAMILIES[name].text, False, False),
            context=families.FAMILIES[name].context,
            pooling=NO_POOLING if is_encoder else -1,
        )
        return families.Said(follows[0] if follows else [], numbers, tokens, plain)

    return say


@pytest.fixture(scope="session")
def back(gguf: Callable[..., Path], converted: Callable[..., Path]) -> Callable[..., Path]:
    """Return the model's directory that such a GGUF file becomes."""
    return lambda name, dtype="f32": converted(
        gguf(name, dtype), f"{name}-{dtype}-back", "--dtype", dtype
    )


# The models that faults are put into, and what `weightctl convert` makes of them.
# Each is made once for all workers of a run. Conversions run in this process: a process of its own
# takes longer to start than these take.

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
