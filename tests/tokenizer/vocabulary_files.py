"""GGUF files with a tokenizer and without tensors, for llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from build import Gguf
from llama_cpp import ask
from weightctl.translate.tokenizer import to_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from weightctl.translate.tokenizer import Tokenizer


def ids_of(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    path: Path,
    *,
    name: str = "small",
    special: bool = False,
) -> list[list[int]]:
    """Return llama.cpp's token ids for texts; with `special`, including those added around them."""
    return ask(
        vocabulary_only(tokenizer, name, path),
        *(("tokenize", text, special) for text in texts),
        only_vocabulary=True,
    )


def vocabulary_only(tokenizer: Tokenizer, name: str, path: Path) -> Path:
    """Write a tokenizer with the header of a llama; `name` is the name of the model."""
    llama = {"context_length": 8, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8}
    values: dict[str, tuple[str, Any]] = {
        "general.architecture": ("string", "llama"),
        "general.name": ("string", name),
        "llama.attention.head_count": ("u32", 1),
        "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
    }
    values |= {f"llama.{key}": ("u32", value) for key, value in llama.items()}
    values |= {key: tuple(value) for key, value in to_metadata(tokenizer).items()}
    path.write_bytes(Gguf().file(values=values))
    return path
