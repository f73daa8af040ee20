"""Rules for chat templates, which are parsed by Jinja's sandbox and never run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.check.rules import RuleFinding
from weightctl.errors import TokenizerError
from weightctl.storage.files import is_file
from weightctl.system.registry import name_install
from weightctl.translate.tokenizer.files import TokenizerFiles
from weightctl.translate.tokenizer.template_syntax import find_syntax_error
from weightctl.translate.tokenizer.tokenizer_config import read_chat_templates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.check.model import CheckedModel

_FILE, _FILE_JSON, _SETTINGS = "chat_template.jinja", "chat_template.json", "tokenizer_config.json"
_DIRECTORY = "additional_chat_templates"
_KEY = "chat_template"
_GGUF_KEY = "tokenizer.chat_template"
_NO_JINJA = "chat templates were not parsed, because jinja2 is not installed"


def find_wrong_syntax(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find chat templates that Jinja cannot parse; a note if Jinja is not installed."""
    for path, where, template in _list_templates(model):
        try:
            reason = find_syntax_error(template)
        except ImportError:
            model.notes.append(f"{_NO_JINJA}: {name_install('check')}")
            return
        if reason:
            yield RuleFinding(path=path, where=where, text=reason)


def find_other_templates(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find a template of tokenizer_config.json that differs from that of chat_template.jinja."""
    settings = model.document(_SETTINGS) or {}
    stated = settings.get(_KEY)
    if not isinstance(stated, str) or model.directory is None:
        return
    try:
        text = TokenizerFiles(model.directory, None, settings).text(_FILE)
    except TokenizerError:  # the other rule reports it
        return
    if text is not None and text.removesuffix("\n") != stated.removesuffix("\n"):
        text = f"differs from {_FILE}, which transformers uses"
        yield model.report(_SETTINGS, _KEY, text, hint="remove one of them")


def _list_templates(model: CheckedModel) -> Iterator[tuple[str, str, str]]:
    """Yield the path, the key and the text of each chat template."""
    header = model.header
    if header is not None and header.format == "gguf":
        for key, value in header.metadata.items():
            if key.startswith(_GGUF_KEY) and isinstance(value.content, str):
                yield header.files[0], key, value.content
    if model.directory is None:
        return
    settings = model.document(_SETTINGS) or {}
    try:
        templates = read_chat_templates(TokenizerFiles(model.directory, None, settings))
    except TokenizerError as error:
        model.notes.append(f"the chat templates were not checked: {error.message}")
        return
    for name, template in templates.items():
        yield (*_place_template(model, name), template)


def _place_template(model: CheckedModel, name: str) -> tuple[str, str]:
    """Return the file and the key that a template of the directory is from."""
    file = os.path.join(_DIRECTORY, f"{name}.jinja") if name else _FILE
    if is_file(model.locate(file)):
        return model.locate(file), ""
    has_settings = (model.document(_SETTINGS) or {}).get(_KEY) is not None
    return model.locate(_SETTINGS if has_settings else _FILE_JSON), f"{_KEY} {name}".rstrip()
