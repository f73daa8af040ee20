"""tokenizer_config.json and the files beside it: special tokens, flags, and chat templates.

Hugging Face's libraries have stored chat templates in several places over time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.storage.files import is_directory, list_names
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.post_processor import Surroundings, read_surroundings
from weightctl.translate.tokenizer.record import WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.translate.tokenizer.record import Tokenizer
    from weightctl.translate.tokenizer.token_ids import TokenIds

_FILE = "chat_template.jinja"
_FILE_JSON = "chat_template.json"
_DIRECTORY = "additional_chat_templates"
_MAX_COUNT = 100
_DEFAULT = "default"


def read_special(files: TokenizerFiles, ids: Mapping[str, int], given: TokenIds) -> dict[str, int]:
    """Return the ids of a directory's special tokens, by GGUF's names.

    tokenizer_config.json names the tokens. For other tokens, the ids in `given` are used, which are
    from the files of the model.
    """
    texts = files.special_tokens()
    made: dict[str, int] = {}
    for name, word in WORDS.items():
        token = ids.get(texts.get(f"{name}_token", ""))
        token = given.first(name) if token is None else token
        if token is not None and token < len(ids):
            made[word] = token
    return made


def read_flags(
    files: TokenizerFiles, special: Mapping[str, int], ids: Mapping[str, int]
) -> dict[str, bool]:
    """Return `add_bos_token`, `add_eos_token` and `add_sep_token` of a directory's files.

    tokenizer.json's post_processor defines the flags. Flags in tokenizer_config.json take
    precedence, as in transformers.
    """
    around = read_surroundings(files.tokenizer or {}) or Surroundings()
    made = {
        flag: _adds_one(texts, [special[word] for word in words if word in special], ids)
        for flag, texts, words in (
            ("add_bos_token", around.before[:1], ("bos", "cls")),
            ("add_eos_token", around.behind[-1:], ("eos", "seperator")),
        )
    }
    for flag in made:
        setting = files.config.get(flag)
        if isinstance(setting, bool) and not around.is_separated:
            made[flag] = setting
    if around.is_separated:
        made["add_sep_token"] = True
    return made


def _adds_one(texts: tuple[str, ...], named: list[int], ids: Mapping[str, int]) -> bool:
    """Whether a token is added that is one of those with a name, or any if there are none."""
    return any(text in ids and (not named or ids[text] in named) for text in texts)


def state_surroundings(
    files: TokenizerFiles,
    special: Mapping[str, int],
    flags: Mapping[str, bool],
    ids: Mapping[str, int],
) -> tuple[dict[str, int], dict[str, bool]]:
    """Return special tokens and flags with which llama.cpp adds what a directory's files add.

    llama.cpp adds `bos` and `eos`, and if a file lacks their ids, two of its own. So the tokens
    that tokenizer.json adds get these roles, such as `cls` and `seperator` of an encoder. A flag
    whose token is missing is false.
    """
    around = read_surroundings(files.tokenizer or {}) or Surroundings()
    roles, stated = dict(special), dict(flags)
    for flag, word, text, similar in (
        ("add_bos_token", "bos", around.first, "cls"),
        ("add_eos_token", "eos", around.last, "seperator"),
    ):
        if not stated.get(flag):
            continue
        token = ids.get(text or "", roles.get(similar))
        if token is not None and (word not in roles or token == roles.get(similar)):
            roles[word] = token
        stated[flag] = word in roles
    return roles, stated


def special_entries(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the entries of tokenizer_config.json that name special tokens."""
    made: dict[str, Any] = {}
    for name, word in WORDS.items():
        token = tokenizer.special.get(word)
        made[f"{name}_token"] = None if token is None else tokenizer.tokens[token]
    # If they had both names, they would be added twice.
    for name, same in (("bos", "cls"), ("eos", "sep")):
        if tokenizer.model == "bert" and made[f"{name}_token"] == made[f"{same}_token"]:
            made[f"{name}_token"] = None
    return {key: value for key, value in made.items() if value is not None}


def read_chat_templates(files: TokenizerFiles) -> dict[str, str]:
    """Return a directory's chat templates by name; the default template has the name "".

    The files take precedence over tokenizer_config.json, as in transformers. Raises
    `TokenizerError` if a file is damaged.
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


def template_entries(templates: Mapping[str, str]) -> list[dict[str, str]] | None:
    """Return the entry of tokenizer_config.json for named chat templates; None without any."""
    if not set(templates) - {""}:
        return None
    return [
        {"name": name or _DEFAULT, "template": template} for name, template in templates.items()
    ]


def template_documents(templates: Mapping[str, str]) -> dict[str, bytes]:
    """Return the file of a single default chat template; else empty, for `template_entries`."""
    if set(templates) != {""}:
        return {}
    return {_FILE: templates[""].encode("utf-8", "surrogateescape")}


def _additional(files: TokenizerFiles) -> list[str]:
    path = files.path(_DIRECTORY)
    if not is_directory(path):
        return []
    names = list_names(path)[:_MAX_COUNT]
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
