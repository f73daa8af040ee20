"""Tiny Whisper models with random weights, and their vocabulary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lazy import torch, transformers
from weightctl.text.byte_level import to_byte_level

if TYPE_CHECKING:
    from pathlib import Path

# The length of the spectrogram is twice the number of positions. whisper.cpp pads the keys to a
# multiple of 256, and its attention counts the padding.
POSITIONS = 256
SIZES: dict[str, int] = {
    "vocab_size": 51865, "d_model": 64, "encoder_layers": 2, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256, "num_mel_bins": 80, "max_source_positions": POSITIONS,
    "max_target_positions": 32,
}  # fmt: skip
WORDS = [*(to_byte_level(bytes([byte])) for byte in range(256)), "Ġt", "he", "Ġthe"]
END = "<|endoftext|>"


def make_whisper(folder: Path) -> None:
    """Write a model of transformers with its vocabulary into a new directory."""
    folder.mkdir()
    torch.manual_seed(0)
    config: Any = transformers.WhisperConfig(**SIZES)
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate([*WORDS, END])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
