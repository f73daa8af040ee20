"""Chat templates, where Hugging Face's libraries have kept them over time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles

__all__ = ["read_chat_templates", "to_config", "to_documents"]

_FILE = "chat_template.jinja"
_FILE_JSON = "chat_template.json"
_DIRECTORY = "additional_chat_templates"
_MAX_COUNT = 100
_DEFAULT = "default"


def read_chat_templates(files: TokenizerFiles) -> dict[str, str]:
    """Return a directory's chat templates by name, "" for the default one.

    The files come before tokenizer_config.json, as in transformers. Raises `TokenizerError`.
    """
    made = _collect_templates(files.config.get("chat_template"))
    if not made:
        made = _collect_templates((files.document(_FILE_JSON) or {}).get("chat_template"))
    default = files.text(_FILE)
    if default is not None:
        made[""] = default
    for name in _additional(files):
        template = files.text(os.path.join(_DIRECTORY, f"{name}.jinja"))
        if template is not None:
            made[name] = template
    return made


def to_config(templates: Mapping[str, str]) -> list[dict[str, str]] | None:
    """Return what tokenizer_config.json has of several chat templates, None if there is one."""
    if not set(templates) - {""}:
        return None
    return [
        {"name": name or _DEFAULT, "template": template} for name, template in templates.items()
    ]


def to_documents(templates: Mapping[str, str]) -> dict[str, bytes]:
    """Return the file of the one chat template there is; several stand in tokenizer_config.json."""
    if set(templates) != {""}:
        return {}
    return {_FILE: templates[""].encode("utf-8", "surrogateescape")}


def _additional(files: TokenizerFiles) -> list[str]:
    path = files.path(_DIRECTORY)
    if not os.path.isdir(path):
        return []
    names = sorted(os.listdir(path))[:_MAX_COUNT]
    return [name.removesuffix(".jinja") for name in names if name.endswith(".jinja")]


def _collect_templates(content: Any) -> dict[str, str]:
    if isinstance(content, str):
        return {"": content}
    made: dict[str, str] = {}
    for entry in content if is_list(content) else []:
        name, template = (
            (entry.get("name"), entry.get("template")) if is_object(entry) else (None, None)
        )
        if isinstance(name, str) and isinstance(template, str):
            made["" if name == _DEFAULT else name] = template
    return made
