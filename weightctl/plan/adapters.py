"""Refusal to convert LoRA adapters to GGUF, which would lack metadata that llama.cpp needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import ADAPTER_CONFIG, config
from weightctl.schemes.adapters import adapter, is_adapter_checkpoint

if TYPE_CHECKING:
    from weightctl.weights.info import Header


def refuse_adapter(header: Header, format_name: str) -> None:
    """Raise `ConversionError` if a LoRA adapter without GGUF's metadata is converted to GGUF."""
    if format_name != "gguf" or header.format == "gguf" or ARCHITECTURE in header.metadata:
        return
    document = config(header.files, ADAPTER_CONFIG)
    found = adapter(header, document)
    if found is None or not is_adapter_checkpoint(header, document):
        return
    base = f" ({found.base})" if found.base else ""
    raise ConversionError(
        "the checkpoint is a LoRA adapter: its names and its order of rows in a GGUF file depend "
        f"on the model that it is for{base}, which is not known here",
        hint="use `weightctl convert ADAPTER OUT.gguf --base MODEL` (base in Python), where MODEL "
        "is a directory with the model's config.json; `weightctl merge MODEL ADAPTER OUT` merges "
        "the adapter into the model; to write a directory for PEFT, use OUT without a suffix",
    )
