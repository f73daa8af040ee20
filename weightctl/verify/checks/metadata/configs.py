"""Compares two configs: the fields of a known family, and the other keys one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.configs import shortest
from weightctl.families.model import ARCHITECTURE
from weightctl.text.untyped import is_list, is_object, is_sequence, is_tuple
from weightctl.verify.compare.configs import find_differences, note_lost_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.families import RecognizedModel
    from weightctl.verify.checks.metadata.description import Description
    from weightctl.verify.results import Findings
    from weightctl.weights.metadata import MetadataValue

# Keys of config.json that contain one of these texts are not compared here: they concern training
# or tools, or are compared elsewhere.
_NOT_OF_THE_MODEL = (
    "dropout", "initializer", "_token_id", "id2label", "label2id", "loss_coef", "quantization",
    "pretraining_tp", "version", "use_cache", "output_", "return_dict", "torchscript", "gradient",
)  # fmt: skip
_DEEPEST = 8


def compare_configs(found: Findings, own: RecognizedModel, other: RecognizedModel) -> None:
    """Compare the configs of two models of one family, also across naming conventions."""
    found.problems += [each.problem for each in find_differences(own, other, with_context=True)]
    if note := note_lost_window(own, other):
        found.notes.append(note)


def compare_other_keys(
    found: Findings, own: Description, other: Description, checkpoint: RecognizedModel | None
) -> None:
    """Compare the numeric values of config keys that are not fields of a known family.

    Nothing is compared if the naming conventions differ. If the family is known, differences are
    notes, since weightctl does not use these keys.
    """
    if own.convention != other.convention:
        return
    values, wanted = (_list_values(each, checkpoint) for each in (own, other))
    for key in values | wanted:
        if key not in values or key not in wanted:
            # Old and new spellings of config.json omit different keys.
            if own.is_gguf:
                has = "only in the reference" if key in wanted else "not in the reference"
                found.notes.append(f"`{key}` is {has}")
        elif values[key] != wanted[key]:
            text = f"is {_show(values[key])} here and {_show(wanted[key])} in the reference"
            if checkpoint is None:
                found.add(key, text)
            else:
                found.notes.append(f"`{key}` {text}; weightctl does not use this key")


def _list_values(description: Description, checkpoint: RecognizedModel | None) -> dict[str, Any]:
    if description.is_gguf:
        return dict(_list_of_metadata(description.metadata, checkpoint))
    read = set[str]()
    if checkpoint is not None:
        read = {key.hugging_face.rpartition(".")[2] for key in checkpoint.family.keys}
    return {
        path: number
        for path, number in _walk_leaves(description.config, "", 0)
        if path.rpartition(".")[2] not in read
        and not any(part in path for part in _NOT_OF_THE_MODEL)
    }


def _list_of_metadata(
    metadata: Mapping[str, MetadataValue], checkpoint: RecognizedModel | None
) -> Iterator[tuple[str, Any]]:
    if ARCHITECTURE not in metadata:
        return
    name = metadata[ARCHITECTURE].content
    read = set[str]()
    if checkpoint is not None:
        read = {key.gguf.format(arch=name) for key in checkpoint.family.keys}
    for key, value in metadata.items():
        if not key.startswith(f"{name}.") or key in read:
            continue
        content: Any = value.content
        if is_sequence(content):
            yield key, tuple(content[:])
        elif isinstance(content, int | float | str):
            yield key, content


def _walk_leaves(content: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the numeric values of a config with their paths; a list of numbers is one value."""
    if is_object(content) and depth < _DEEPEST:
        for key, value in content.items():
            yield from _walk_leaves(value, f"{path}.{key}" if path else key, depth + 1)
    elif is_list(content) and all(isinstance(each, int | float) for each in content):
        yield path, tuple(content)
    elif isinstance(content, int | float):
        yield path, content


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{shortest(value):g}"
    return f"a list of {len(value)} values" if is_tuple(value) else f"{value!s:.60}"
