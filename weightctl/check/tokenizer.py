"""Rules for the tokenizer files, and for the ids of special tokens in the configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.check.model import list_added
from weightctl.check.rules import JsonChange, RuleFinding
from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.check.model import CheckedModel

_CONFIGS = ("config.json", "generation_config.json")
_TOKENIZER, _SETTINGS, _MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
_WORDS = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
_NESTED = "text_config"
_MOST_NAMED = 3


def find_repeated_ids(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find ids that several texts of tokenizer.json have."""
    texts: dict[int, list[str]] = {}
    for text, token in model.tokens:
        if text not in texts.setdefault(token, []):
            texts[token].append(text)
    repeated = {token: found for token, found in texts.items() if len(found) > 1}
    if repeated:
        (token, found), *_ = repeated.items()
        more = f"; {len(repeated) - 1} more ids have several" if len(repeated) > 1 else ""
        text = f"token {token} has several texts: {_quote(found)}{more}"
        yield model.report(_TOKENIZER, "", text)


def find_unknown_texts(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find special tokens whose text is not in the vocabulary of tokenizer.json."""
    ids = model.token_ids
    if not ids:
        return
    for name in (_SETTINGS, _MAP):
        for word, text in _list_special(model.document(name)).items():
            if text not in ids:
                problem = f"is {text!r:.60}, which is not a token of {_TOKENIZER}"
                yield model.report(name, f"{word}_token", problem)


def find_other_texts(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find special tokens that special_tokens_map.json and tokenizer_config.json state otherwise.

    If only the text of tokenizer_config.json is a token, it is the right one: transformers uses it.
    """
    ids = model.token_ids
    stated = _list_special(model.document(_SETTINGS))
    for word, text in _list_special(model.document(_MAP)).items():
        right = stated.get(word, text)
        if right == text:
            continue
        document = model.document(_MAP) or {}
        key = f"{word}_token"
        keys = (key, "content") if is_object(document.get(key)) else (key,)
        change = JsonChange(model.locate(_MAP), keys, right)
        problem = f"is {text!r:.60}, and {right!r:.60} in {_SETTINGS}, which transformers uses"
        yield model.report(_MAP, key, problem, changes=[change] if right in ids else ())


def find_added_tokens(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find tokens of `added_tokens_decoder` that tokenizer.json has under another id."""
    ids = model.token_ids
    settings = model.document(_SETTINGS) or {}
    added = settings.get("added_tokens_decoder")
    if not ids or not is_object(added):
        return
    for key, entry in added.items():
        text = entry.get("content") if is_object(entry) else None
        if isinstance(text, str) and text in ids and str(ids[text]) != key:
            problem = f"is {text!r:.60}, which is token {ids[text]} of {_TOKENIZER}"
            yield model.report(_SETTINGS, f"added_tokens_decoder.{key}", problem)


def find_ids_out_of_range(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find ids of special tokens that neither the tokenizer nor the embedding has."""
    rows = _count_rows(model)
    if not rows:
        return
    for name, keys, content in _list_ids(model):
        bad = [token for token in _as_list(content) if not 0 <= token < rows]
        if bad and not (bad == [-1] and keys[-1] == "pad_token_id"):
            text = f"is {bad[0]}, and the model has {rows:,} tokens"
            changes = _correct(model, name, keys, content, rows)
            yield model.report(name, ".".join(keys), text, changes=changes)


def find_other_ids(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find ids that are not those of the special tokens that the tokenizer names."""
    ids, rows = model.token_ids, _count_rows(model)
    special = _collect_special(model)
    for name, keys, content in _list_ids(model):
        word = keys[-1].removesuffix("_token_id")
        right = ids.get(special.get(word, ""))
        stated = _as_list(content)
        if right is None or right in stated or any(not 0 <= each < rows for each in stated):
            continue
        # A file may name the end of a turn, and the other the end of a text.
        if any(right in _as_list(other) for _, place, other in _list_ids(model)
               if place[-1] == keys[-1]):  # fmt: skip
            continue
        are_special = any(each in _list_added(model) for each in stated)
        text = f"is {content}, and the tokenizer's {word} token {special[word]!r:.60} is {right}"
        changes = () if are_special else _correct(model, name, keys, content, rows)
        yield model.report(name, ".".join(keys), text, changes=changes)


def _correct(
    model: CheckedModel, name: str, keys: tuple[str, ...], content: Any, rows: int
) -> tuple[JsonChange, ...]:
    """Return the change to the id that the tokenizer has for the name of a special token.

    In a list, ids that are not tokens are left out. Nothing is changed if the tokenizer has none.
    """
    word = keys[-1].removesuffix("_token_id")
    right = model.token_ids.get(_collect_special(model).get(word, ""))
    value: Any = right
    if is_list(content):
        kept = [token for token in _as_list(content) if 0 <= token < rows]
        value = kept if right is None or right in kept else [*kept, right]
    return (JsonChange(model.locate(name), keys, value),) if value not in (None, []) else ()


def _list_ids(model: CheckedModel) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield the file, the place and the content of each id of a special token."""
    for name in _CONFIGS:
        document = model.document(name) or {}
        nested = document.get(_NESTED)
        places: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), document)]
        if is_object(nested):
            places.append(((_NESTED,), nested))
        for outer, entries in places:
            for key, content in entries.items():
                word = key.removesuffix("_token_id")
                if key.endswith("_token_id") and word in _WORDS and _as_list(content):
                    yield name, (*outer, key), content


def _as_list(content: Any) -> list[int]:
    """Return the ids of an entry: an id, or a list of ids."""
    values = content if is_list(content) else [content]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]


def _count_rows(model: CheckedModel) -> int:
    """Return the rows of the embedding, or without a known model the tokens of the tokenizer."""
    checkpoint = None if model.header is None else model.subject.checkpoint
    if checkpoint is not None:
        return checkpoint.config.vocabulary
    ids = model.token_ids
    return max(ids.values()) + 1 if ids else 0


def _list_special(document: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the texts of the special tokens of a file, by name: `bos`."""
    found: dict[str, str] = {}
    for word in _WORDS:
        value = (document or {}).get(f"{word}_token")
        text = value.get("content") if is_object(value) else value
        if isinstance(text, str) and text:
            found[word] = text
    return found


def _collect_special(model: CheckedModel) -> dict[str, str]:
    documents = (model.document(_MAP), model.document(_SETTINGS))
    return {word: text for each in documents for word, text in _list_special(each).items()}


def _list_added(model: CheckedModel) -> set[int]:
    return {token for _, token in list_added(model.document(_TOKENIZER) or {})}


def _quote(texts: list[str]) -> str:
    return join_names([f"{text!r:.60}" for text in texts], _MOST_NAMED)
