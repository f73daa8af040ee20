"""Classifier heads of encoders: from one vector per text to a value for each label.

Names and keys: transformers' classes for sequence classification; llama.cpp's `build_pooling` and
`conversion/bert.py`. llama.cpp uses these heads to rank texts, and reads the names of the labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import Key, RowCount
from weightctl.families.config_values import WholeNumber, show_value
from weightctl.families.modules import Name, WeightAxes
from weightctl.text.untyped import is_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families.config_keys import Fields

    Document = Mapping[str, Any]

_HEAD, _CLASSES, _ENDING = "head", "architectures", "ForSequenceClassification"
_IF_HEAD = ("labels",)
# transformers' default number of labels.
_USUAL = 2
_MOST = 1 << 16


class LabelNames(NamedTuple):
    """The name of each label, in order."""

    def read(self, content: object) -> tuple[str, ...]:
        if not is_sequence(content) or not all(isinstance(each, str) for each in content):
            raise ValueError(f"is {show_value(content)}; it must be a list of names")
        return tuple(content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of strings."""
        return "array[string]"

    def write(self, value: Sequence[str]) -> list[str]:
        """Return the names as a list."""
        return list(value)


def _name_labels(fields: Fields) -> tuple[str, ...] | None:
    return tuple(f"LABEL_{number}" for number in range(fields["labels"])) or None


def _count_names(fields: Fields) -> int:
    return len(fields["label_names"] or ())


def _complete_names(fields: Fields) -> tuple[str, ...] | None:
    return fields["label_names"] or _name_labels(fields)


# A model without a head has 0 labels. GGUF files may lack the names.
HEAD_KEYS = (
    Key(field="label_names", kind=LabelNames(), gguf_default=None,
        gguf="{arch}.classifier.output_labels"),
    Key(field="labels", kind=WholeNumber(0, _MOST), default=0, gguf_default=_count_names,
        hugging_face=f"{_HEAD}.size", seen=RowCount("cls.output.weight")),
    Key(field="label_names", kind=LabelNames(), gguf_default=_complete_names),
    Key(field="label_names", kind=LabelNames(), default=_name_labels,
        hugging_face=f"{_HEAD}.labels"),
)  # fmt: skip


def head_lines(dense: str, output: str, norm: str = "") -> tuple[Name, ...]:
    """Return the lines of a head; the arguments are the names in Hugging Face's convention."""
    common: dict[str, Any] = {"when": _IF_HEAD}
    found = [
        Name(module="head.dense", gguf="cls", hugging_face=dense, bias="head_bias",
             axes=WeightAxes(("hidden",), ("hidden",)), **common),
        Name(module="head.output", gguf="cls.output", hugging_face=output, bias=True,
             axes=WeightAxes(("labels",), ("hidden",)), **common),
    ]  # fmt: skip
    if norm:
        axes = WeightAxes(("hidden",))
        line = Name(module="head.norm", gguf="cls.norm", hugging_face=norm, axes=axes, **common)
        found.insert(1, replace(line, is_float32=True))
    return tuple(found)


def with_prefix(names: tuple[Name, ...], prefix: str) -> tuple[Name, ...]:
    """Return the lines of an encoder without a head, and with a prefix those of one with a head.

    transformers before version 5 does not load a head if the other names lack the prefix.
    """
    made: list[Name] = []
    for each in names:
        made.append(replace(each, unless="labels"))
        name = None if each.hugging_face is None else prefix + each.hugging_face
        made.append(replace(each, hugging_face=name, when=(*each.when, *_IF_HEAD)))
    return tuple(made)


def without_head(names: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return lines without those of a head; the opposite of `with_prefix` and `head_lines`."""
    return tuple(replace(each, unless=None) for each in names if each.unless == "labels")


def reading_head(
    standard: Callable[[Document], Document], *own: str
) -> Callable[[Document], Document]:
    """Return a family's `standard` that also collects what config.json states about a head.

    `own` are keys that only apply to heads; they are ignored without a head.
    """

    def read(document: Document) -> Document:
        found = standard(document)
        classes = document.get(_CLASSES)
        first = classes[0] if is_sequence(classes) and len(classes) > 0 else None
        if not isinstance(first, str) or not first.endswith(_ENDING):
            return found
        names = _list_labels(document)
        kept = {name: document[name] for name in own if name in document}
        return {**found, _HEAD: {"size": len(names), "labels": names, **kept}}

    return read


def read_head(document: Document) -> Document:
    """Return config.json with what it states about a head."""
    return reading_head(dict)(document)


def _list_labels(document: Document) -> list[Any]:
    """Return the names of the labels in order.

    Raises `ValueError` if `id2label` does not number them from 0.
    """
    given = document.get("id2label")
    if not is_object(given):
        count = WholeNumber(1, _MOST).read(document.get("num_labels", _USUAL))
        return [f"LABEL_{number}" for number in range(count)]
    by_number = {str(number): name for number, name in given.items()}
    numbers = [str(number) for number in range(len(by_number))]
    if not numbers or by_number.keys() != set(numbers):
        raise ValueError(f"`id2label` does not name the labels from 0 to {len(by_number) - 1}")
    return [by_number[number] for number in numbers]


def complete_head(document: Document) -> Document:
    """Return config.json with what it states about a head in the form that transformers reads."""
    rest = {name: value for name, value in document.items() if name != _HEAD}
    head = dict(document.get(_HEAD, {}))
    if not head.get("size"):
        return rest
    count = head.pop("size")
    names = head.pop("labels", None) or [f"LABEL_{number}" for number in range(count)]
    return {
        **rest,
        **head,
        _CLASSES: [rest[_CLASSES][0].removesuffix("Model") + _ENDING],
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def check_head(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if the numbers of labels and names differ."""
    names = fields["label_names"] or ()
    if len(names) != fields["labels"]:
        raise ValueError(f"{len(names)} names are given for {fields['labels']} labels")
    return fields
