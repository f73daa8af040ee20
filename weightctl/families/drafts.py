"""Drafts of family files, from the config and the tensor names of a model that is not supported."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import WeightctlError
from weightctl.families import FAMILIES, recognize
from weightctl.families.added import with_families
from weightctl.families.config_file import read_config
from weightctl.families.configs import MODEL_TYPE
from weightctl.families.index import TABLES
from weightctl.families.lines import LINES
from weightctl.families.nearest import find_nearest
from weightctl.schemes.buffers import is_buffer
from weightctl.text.folding import mask_numbers
from weightctl.text.untyped import is_list
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.families.family import Family, Name
    from weightctl.weights.tree import Checkpoint

_LAYER, _MASK, _EXPERT = "model.layers.N.", "N", "{expert}"
_UNDECIDED = "# undecided: "


class _AlikeTensors(NamedTuple):
    """Tensors of a model whose names differ only in numbers and in the last word."""

    shape: tuple[int, ...]
    kinds: set[str]


def draft_family(weights: Checkpoint) -> str:
    """Return a draft of the file of a family for a model, to be completed by hand.

    The family is based on the supported one that is most similar. Tensors with other names get the
    roles that llama.cpp's list of names gives them. What is not decided is a comment. Raises
    `ArchitectureError` if there is no config.json.
    """
    header = header_of(weights)
    where, document = read_config(header)
    tensors = [each for each in header.tensors.values() if not is_buffer(each)]
    near = find_nearest(tensors, "hugging_face", document)
    base = FAMILIES["llama"].load() if near is None else near.family
    alike: dict[str, _AlikeTensors] = {}
    for each in tensors:
        stem, _, kind = mask_numbers(each.name).rpartition(".")
        alike.setdefault(stem, _AlikeTensors(each.shape, set())).kinds.add(kind)
    text = "\n".join(
        chain(
            _list_head(base, document),
            _list_tensors(base, alike),
            _list_keys(document, [] if near is None else near.unread),
        )
    )
    # Names of files and tensors come from the model, and must not end a comment.
    name = re.sub(r"\W", "_", str(document.get(MODEL_TYPE, "draft")))
    head = [f"A draft of {name}.toml, made from {where}.", _judge(text, name, weights)]
    return "".join(f"# {' '.join(line.split())}\n" for line in head) + f"{text}\n"


def _list_head(base: Family, document: Mapping[str, Any]) -> Iterator[str]:
    table = TABLES / f"{base.name}.toml"
    rules = tomllib.loads(table.read_text()) if table.exists() else {}
    yield f'base = "{base.name}"'
    yield f"standard = {json.dumps(rules.get('standard', 'rope'))}"
    yield f"checked = {json.dumps(rules.get('checked', ['decoder']))}"
    yield ""
    yield f"[types.{json.dumps(str(document.get(MODEL_TYPE, 'draft')))}]"
    classes = document.get("architectures")
    yield f"class = {json.dumps(str(classes[0]) if is_list(classes) and classes else '')}"


def _list_tensors(base: Family, alike: Mapping[str, _AlikeTensors]) -> Iterator[str]:
    yield ""
    yield "[tensors]"
    known = {_mask(line): line for line in base.names if line.hugging_face is not None}
    left = {_role(line): line for name, line in known.items() if name not in alike}
    for name, each in alike.items():
        line = known.get(name)
        role = _find_role(name, left) if line is None else _role(line)
        if role is None:
            yield f"{_UNDECIDED}{json.dumps(name)} {list(each.shape)}"
            continue
        left.pop(role, None)
        usual = LINES[role] if line is None else line
        row = [] if line is not None else [f"hf = {json.dumps(_shorten(name))}"]
        if "bias" in each.kinds and not usual.bias:
            row.append("bias = true")
        if row:
            yield f"{json.dumps(role)} = {{{', '.join(row)}}}"
    for role, line in left.items():
        if not line.when and not line.unless:
            yield f"{json.dumps(role)} = false"


def _list_keys(document: Mapping[str, Any], unread: list[str]) -> Iterator[str]:
    if unread:
        yield ""
        yield "[keys]"
        yield from (
            f"{_UNDECIDED}{json.dumps(key)} = {json.dumps(document[key])}" for key in unread
        )


def _mask(line: Name) -> str:
    return str(line.hugging_face).format(_MASK, expert=_MASK)


def _role(line: Name) -> str:
    return line.module.removeprefix("layers.{}.")


def _shorten(name: str) -> str:
    """Return a name as a file has it: that in a layer, with `{expert}` for the second number."""
    return name.removeprefix(_LAYER).replace(f".{_MASK}.", f".{_EXPERT}.")


def _find_role(name: str, left: Mapping[str, Name]) -> str | None:
    """Return the role that llama.cpp's list of tensor names gives to a name, None if none does."""
    from gguf.constants import TENSOR_NAMES
    from gguf.tensor_mapping import TensorNameMap

    mapped = chain(TensorNameMap.block_mappings_cfg.items(), TensorNameMap.mappings_cfg.items())
    wanted = name.replace(f".{_MASK}.", ".{bid}.", 1)
    found = [TENSOR_NAMES[tensor].replace("{bid}", "{}") for tensor, names in mapped
             if wanted in names]  # fmt: skip
    alike = [role for role, line in LINES.items() if line.gguf in found and role.count(".") < 2]
    return next((role for role in alike if role in left), next(iter(alike), None))


def _judge(text: str, name: str, weights: Checkpoint) -> str:
    """Return a text that says whether weightctl reads the model with the draft."""
    with TemporaryDirectory() as place:
        path = Path(place, f"{name}.toml")
        path.write_text(text)
        try:
            with with_families([str(path)]):
                found = recognize(weights)
        except WeightctlError as error:
            return f"weightctl does not read the model with it: {error}".replace(f"{path}: ", "")
    if _UNDECIDED in text or found.missing or found.unexpected:
        return f"Complete it: lines that begin with `{_UNDECIDED.strip()}` say what is missing."
    return "weightctl reads the model with it. Compare the results with those of the original."
