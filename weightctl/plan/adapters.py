"""Refusal to convert LoRA adapters to GGUF, which would lack metadata that llama.cpp needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import ADAPTER_CONFIG, config
from weightctl.schemes.adapters import adapter, is_adapter_checkpoint

if TYPE_CHECKING:
    from weightctl.weights.info import Header

__all__ = ["refuse_adapter"]


def refuse_adapter(header: Header, format_name: str) -> None:
    """Raise `ConversionError` if a LoRA adapter without GGUF's metadata is converted to GGUF."""
    if format_name != "gguf" or header.format == "gguf" or ARCHITECTURE in header.metadata:
        return
    document = config(header.files, ADAPTER_CONFIG)
    found = adapter(header, document)
    if found is None or not is_adapter_checkpoint(header, document):
        return
    alpha = "" if found.alpha is None else f" ({found.alpha:g})"
    base = f" ({found.base})" if found.base else ""
    raise ConversionError(
        "the checkpoint is a LoRA adapter, which weightctl does not write as GGUF: the file would "
        f"lack the alpha{alpha} and the base model{base} in the form that llama.cpp reads",
        hint="llama.cpp's convert_lora_to_gguf.py writes such files; or merge the adapter into its "
        "model with PEFT and convert the result; or write a directory for PEFT: OUT without a "
        "suffix",
    )
