"""What stands beside a checkpoint in a model's directory, as Hugging Face lays it out."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from weightctl.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["companions", "config"]

_SUFFIXES = (".json", ".txt", ".model", ".md", ".jinja", ".tiktoken", ".py")
_NAMES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
_MAX_SIZE = 100_000_000


def companions(files: Sequence[str]) -> Mapping[str, str]:
    """Return the files to carry along with a checkpoint, by name: config, tokenizer, licence.

    A directory without a config.json is no model's directory, and nothing is carried from it.
    """
    directory = os.path.dirname(files[0]) if files else ""
    if not files or not os.path.isfile(os.path.join(directory, "config.json")):
        return {}
    return {
        entry.name: entry.path
        for entry in os.scandir(directory or ".")
        if entry.is_file()
        and entry.stat().st_size <= _MAX_SIZE
        and not entry.name.endswith(".index.json")
        and (entry.name.endswith(_SUFFIXES) or entry.name.startswith(_NAMES))
    }


def config(files: Sequence[str]) -> Mapping[str, Any]:
    """Return the config.json beside a checkpoint; empty where there is none that is JSON."""
    directory = os.path.dirname(files[0]) if files else ""
    path = os.path.join(directory, "config.json")
    try:
        if not files or os.path.getsize(path) > _MAX_SIZE:
            return {}
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}
    return document if is_object(document) else {}
