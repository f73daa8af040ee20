"""What llama.cpp loads, and notes on what it computes differently from transformers."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from weightctl.families.config_keys import Fields
    from weightctl.weights.metadata import MetadataValue

_QKV = {
    "required": " ".join(f"blk.attn_{part}|blk.attn_qkv" for part in "qkv"),
    "optional": " ".join(f"blk.attn_{part}.bias" for part in ("q", "k", "v", "qkv")),
}
# What llama.cpp reads of any weight.
_SCALES = re.compile(r"\.(scale|input_scale)$")
_LAYER = re.compile(r"(.*\bblk)\.(\d+)\.(.+)")
_FIRST = re.compile(r"blk\.0\.")
_KINDS = {
    "windowed_layers": "a sliding window",
    "compress_ratios": "compressed attention",
    "attention_layers": "attention",
    "ssm_layers": "a state space model",
    "delta_layers": "a gated delta net",
    "convolution_layers": "a convolution",
}
_OUTPUT, _TYPE = "output.weight", "general.type"
_MOST_NAMED = 3


class RuntimeDifference(str):
    """A note that llama.cpp computes something else than transformers; `--strict` refuses it."""

    __slots__ = ()


def describe_difference(what: str) -> RuntimeDifference:
    """Return the note for what llama.cpp computes differently from transformers."""
    return RuntimeDifference(f"results of llama.cpp differ from transformers: {what}")


def refuse_differences(notes: Iterable[str]) -> None:
    """Raise `ConversionError` if a note states that llama.cpp computes something else."""
    if found := [note for note in notes if isinstance(note, RuntimeDifference)]:
        raise ConversionError("; ".join(found), hint="to convert the model anyway, omit --strict")


def find_unloaded_layers(architecture: str, fields: Fields) -> str | None:
    """Return why llama.cpp does not run a model whose layers are all of one kind, or None."""
    row = _read_table().get(architecture, {})
    for field in row.get("some", "").split():
        if fields.get(field) and not any(fields[field]):
            return f"none of its layers has {_KINDS[field]}"
    for field in row.get("not_all", "").split():
        if fields.get(field) and all(fields[field]):
            return f"all of its layers have {_KINDS[field]}"
    return None


def find_unloaded_tensors(
    metadata: Mapping[str, MetadataValue], names: Collection[str]
) -> str | None:
    """Return why llama.cpp does not load a GGUF with these tensors, None if it does.

    None also for adapters and towers, and for architectures that are not in `llama_cpp.toml`.
    """
    if _TYPE in metadata and metadata[_TYPE].content != "model":
        return None
    architecture = str(metadata[ARCHITECTURE].content) if ARCHITECTURE in metadata else ""
    row = _read_table().get(architecture)
    if row is None:
        return None
    if missing := [*_find_missing(row["required"], architecture, metadata, names)]:
        if missing[0] == _OUTPUT:
            return f"llama.cpp requires `{_OUTPUT}`, an output that is not tied to the embedding"
        return f"llama.cpp requires {join_names(_quote(missing), _MOST_NAMED)}"
    known = {
        name for key in ("required", "possible", "optional") for name in re.split(r"[ |]", row[key])
    }
    if unread := [name for name in names if _SCALES.sub("", _plain(name)) not in known]:
        return f"llama.cpp does not read {join_names(_quote(unread), _MOST_NAMED)}"
    return None


def loads_mtp_apart(architecture: str) -> bool:
    """Whether llama.cpp loads the layers for MTP of an architecture from a file of their own."""
    return "mtp_apart" in _read_table().get(architecture, {})


def _find_missing(
    required: str,
    architecture: str,
    metadata: Mapping[str, MetadataValue],
    names: Collection[str],
) -> Iterator[str]:
    """Yield the names of required tensors that are not there."""
    layers, mtp = (
        int(metadata[key].content) if key in metadata else 0
        for key in (f"{architecture}.block_count", f"{architecture}.nextn_predict_layers")
    )
    present = {name.removesuffix(".weight") for name in names}
    numbers: dict[str, set[int]] = {"blk": {*range(layers)}}
    for name in names:
        if found := _LAYER.match(name):
            numbers.setdefault(found[1], set()).add(int(found[2]))
    if mtp and loads_mtp_apart(architecture) and not any(map(_FIRST.match, names)):
        numbers["blk"] = set()  # those for MTP do not have these tensors
    for alternatives in required.split():
        first, *_ = each = alternatives.split("|")
        stem, dot, _ = first.rpartition("blk.")
        for number in sorted(numbers.get(f"{stem}blk", ())) if dot else [0]:
            if dot and number >= layers - mtp:
                continue
            here = [name.replace("blk.", f"blk.{number}.", 1) for name in each]
            if present.isdisjoint(here):
                yield here[0] if here[0].endswith(".bias") else f"{here[0]}.weight"


def _plain(name: str) -> str:
    """Return the name without layer number and `.weight`."""
    return _LAYER.sub(r"\1.\3", name).removesuffix(".weight")


def _quote(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


@cache
def _read_table() -> Mapping[str, Mapping[str, str]]:
    import tomllib

    text = files("weightctl.families").joinpath("llama_cpp.toml").read_text("utf-8")
    table: dict[str, dict[str, str]] = tomllib.loads(text)
    for row in table.values():
        has_qkv = any("QKV" in row.get(key, "") for key in ("required", "possible"))
        for key in ("required", "possible", "optional"):
            row[key] = row.get(key, "").replace("QKV", _QKV["required"]).replace("\n", " ")
        if has_qkv:
            row["optional"] += f" {_QKV['optional']}"
    return table
