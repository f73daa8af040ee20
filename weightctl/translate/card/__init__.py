"""Model cards: the `general.*` keys of GGUF, and the front matter of a README.

The keys that are read, and their names in GGUF, are those of llama.cpp's `gguf/metadata.py`.
"""

from __future__ import annotations

from weightctl.translate.card.facts import from_directory, size_label
from weightctl.translate.card.readme import to_readme

__all__ = ["from_directory", "size_label", "to_readme"]
