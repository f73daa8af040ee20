"""Rules for config.json: dtype and quantization settings, and JSON files that cannot be read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from weightctl.check.rules import JsonChange, RuleFinding
from weightctl.families.common_keys import describe_foreign_classes
from weightctl.formats.huggingface import CONFIG
from weightctl.schemes.matching import read_entries
from weightctl.schemes.settings import SETTINGS_FILES, SETTINGS_KEYS, read_settings_file
from weightctl.text.untyped import is_object
from weightctl.text.wording import percent, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.check.model import CheckedModel

# Names of dtypes in config.json, and the encodings of their values.
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_KEYS = ("torch_dtype", "dtype")
# The config of a model of several parts can have the config of its text model.
_NESTED = "text_config"
# A dtype is wrong if fewer of the values have it, and more have another one.
_MOST = 0.5


def find_damaged_documents(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find JSON files of the directory that are not JSON objects."""
    for name, reason in model.damaged_documents.items():
        yield model.report(name, "", reason, hint="copy the file again from its source")


def find_wrong_dtypes(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find a dtype in config.json that most values of the weights do not have."""
    document = model.document(CONFIG)
    sizes = _count_values(model)
    if document is None or not sizes:
        return
    total = sum(sizes.values())
    (most, size), *_ = sizes.most_common(1)
    right = next((name for name, encoding in _DTYPES.items() if encoding == most), "")
    for keys, stated in _list_dtypes(document, is_uniform=size == total):
        encoding = _DTYPES.get(stated.removeprefix("torch."), "")
        if not encoding or encoding == most or size <= _MOST * total or not right:
            continue
        share = "all" if size == total else f"{percent(size / total)} of the"
        text = f"is {stated}, and {share} values are {most}"
        change = JsonChange(model.locate(CONFIG), keys, right)
        yield model.report(CONFIG, ".".join(keys), text, changes=[change])


def _count_values(model: CheckedModel) -> Counter[str]:
    """Count the values of each dtype; empty if weights are quantized, or if there is no header."""
    header = model.header
    sizes = Counter[str]()
    if header is None or _list_schemes(model):
        return sizes
    for info in header.tensors.values():
        if info.encoding.name in _DTYPES.values():
            sizes[info.encoding.name] += info.size
        elif info.encoding.block > 1 or info.encoding.name.startswith("F8"):
            return Counter()
    return sizes


def _list_dtypes(
    document: Mapping[str, Any], *, is_uniform: bool
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the places of dtypes in a config; those of a part only if all values have one dtype."""
    for key in _KEYS:
        value = document.get(key)
        if isinstance(value, str):
            yield (key,), value
        nested = document.get(_NESTED)
        inner = nested.get(key) if is_uniform and is_object(nested) else None
        if isinstance(inner, str):
            yield (_NESTED, key), inner


def find_foreign_classes(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find classes in config.json that are not of the model family."""
    found = model.subject.checkpoint
    text = "" if found is None else describe_foreign_classes(found.family, found.document)
    if text:
        yield model.report(CONFIG, "", text)


def find_missing_quantization(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find quantized weights whose config.json has no quantization settings."""
    document = model.document(CONFIG)
    schemes = _list_schemes(model) if document is not None else Counter[str]()
    if document is None or not schemes or _has_settings(document):
        return
    (label, count), *_ = schemes.most_common(1)
    settings, verb = _find_settings(model, label), "is" if count == 1 else "are"
    yield model.report(
        CONFIG,
        "quantization_config",
        f"is missing, and {pluralize(count, 'weight')} {verb} stored in {label}",
        "" if settings else "copy the settings from the config.json of the source",
        [JsonChange(model.locate(CONFIG), ("quantization_config",), settings)] if settings else (),
    )


def _list_schemes(model: CheckedModel) -> Counter[str]:
    """Count the weights of each scheme that stores a weight in several tensors."""
    header = model.header
    if header is None or header.format not in {"safetensors", "pytorch"}:
        return Counter()
    return Counter(each.label for each in read_entries(model.subject.stored).quantized.values())


def _has_settings(document: Mapping[str, Any]) -> bool:
    nested = document.get(_NESTED)
    documents = (document, *((nested,) if is_object(nested) else ()))
    return any(document.get(key) for document in documents for key in SETTINGS_KEYS)


def _find_settings(model: CheckedModel, label: str) -> dict[str, Any] | None:
    """Return the settings that another file of the directory has; None if there is none."""
    header = model.header
    for name, method in SETTINGS_FILES.items() if header is not None else ():
        is_method = label.upper().startswith(method.upper())
        if header is not None and is_method and (found := read_settings_file(header, name)):
            return found
    return None
