"""Drafts of family files, from the config and the tensor names of a model that is not supported."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ArchitectureError, WeightctlError
from weightctl.families import recognize
from weightctl.families.added import with_families
from weightctl.families.common_keys import HARMLESS, REFUSED, USED
from weightctl.families.config_file import read_config
from weightctl.families.configs import MODEL_TYPE
from weightctl.families.index import FAMILIES, TABLES
from weightctl.families.nearest import find_nearest
from weightctl.families.usual_names import LINES
from weightctl.schemes.buffers import is_buffer
from weightctl.system.registry import name_install
from weightctl.text.folding import mask_numbers
from weightctl.text.untyped import is_list
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.families.family import Family
    from weightctl.families.modules import Name
    from weightctl.weights.tree import Checkpoint

_LAYER, _MASK, _EXPERT = "model.layers.N.", "N", "{expert}"
_UNDECIDED = "# undecided: "
# RoPE of neighboring values, in transformers' modules.
_INTERLEAVED = re.compile(r"\[\.\.\., 0?::2\]")


class _AlikeTensors(NamedTuple):
    """Tensors of a model whose names differ only in numbers and in the last word."""

    shape: tuple[int, ...]
    kinds: set[str]


class _StatedClass(NamedTuple):
    """What the source of transformers states about a type: keys with defaults, and its RoPE."""

    defaults: Mapping[str, Any]
    is_interleaved: bool


def draft_family(weights: Checkpoint) -> str:
    """Return a draft of the file of a family for a model, to be completed by hand.

    The family is based on the supported one that is most similar. Tensors with other names get the
    roles that llama.cpp's list of names gives them. If transformers is installed, its class states
    defaults; its source is read, and not run. What is not decided is a comment. Raises
    `ArchitectureError` if there is no config.json, or if gguf is needed and not installed.
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
    stated = _read_class(str(document.get(MODEL_TYPE)))
    text = "\n".join(
        chain(
            _list_head(base, document),
            [] if stated is None else _list_defaults(base, document, stated),
            _list_tensors(base, alike),
            _list_keys(document, [] if near is None else near.unread),
            [] if stated is None else _list_missing(base, stated),
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


def _read_class(model_type: str) -> _StatedClass | None:
    """Return what transformers' source states about a type, None if it does not have the type."""
    package = find_spec("transformers")
    folders = None if package is None else package.submodule_search_locations
    if not folders or not re.fullmatch(r"\w+", model_type):
        return None
    folder = Path(folders[0], "models", model_type)
    try:
        tree = ast.parse((folder / f"configuration_{model_type}.py").read_text("utf-8"))
        module = (folder / f"modeling_{model_type}.py").read_text("utf-8")
    except (OSError, SyntaxError, ValueError):
        return None
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    made: dict[str, dict[str, Any]] = {}
    for each in classes:
        found: dict[str, Any] = {}
        for row in each.body:
            if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name) and row.value:
                with suppress(ValueError):
                    found[row.target.id] = ast.literal_eval(row.value)
        made[each.name] = found
    # A class of a multimodal model also has configs of its parts: the text model's has layers.
    of_text = next((each for each in made.values() if "num_hidden_layers" in each), None)
    return None if of_text is None else _StatedClass(of_text, bool(_INTERLEAVED.search(module)))


def _list_defaults(
    base: Family, document: Mapping[str, Any], stated: _StatedClass
) -> Iterator[str]:
    """Yield the defaults of transformers' class that differ from those of the base."""
    lines: dict[str, str] = {}
    for key in base.keys:
        value = stated.defaults.get(key.hugging_face)
        with suppress(ValueError):
            value = None if value is None else key.kind.read(value)
        if isinstance(value, bool | int | float | str) and value != key.default:
            lines[key.field] = f"{json.dumps(key.field)} = {json.dumps(value)}"
    if lines:
        yield ""
        yield f"[types.{json.dumps(str(document.get(MODEL_TYPE, 'draft')))}.defaults]"
        yield from lines.values()


def _list_missing(base: Family, stated: _StatedClass) -> Iterator[str]:
    """Yield comments on what the class does not have, and on its RoPE."""
    common = USED | HARMLESS | REFUSED.keys() | stated.defaults.keys()
    for name in dict.fromkeys(key.hugging_face for key in base.keys):
        if name and "." not in name and name not in common:
            yield f"{_UNDECIDED}transformers' class lacks the key {json.dumps(name)} of the base"
    if stated.is_interleaved and not base.blocks.get("rope_interleaved"):
        yield (
            f"{_UNDECIDED}transformers' RoPE seems to turn neighboring values, as "
            "`blocks = {rope_interleaved = true}` states"
        )


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
    try:
        from gguf.constants import TENSOR_NAMES
        from gguf.tensor_mapping import TensorNameMap
    except ImportError as error:
        raise ArchitectureError(
            "a draft of a family needs the package gguf, which is not installed",
            hint=f"install it: {name_install('check')}",
        ) from error
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
