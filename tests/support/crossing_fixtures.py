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
