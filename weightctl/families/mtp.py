"""Layers of multi-token prediction (MTP): how checkpoints of a family store them.

Such a layer follows the layers of the model and predicts a token further ahead, for speculative
decoding. The model computes the same without it, and our modules leave it out.

Names: the published checkpoints of DeepSeek-V3, GLM-4.5, K-EXAONE and MiMo-V2, vLLM's
`deepseek_mtp.py`, `exaone_moe_mtp.py` and `mimo_v2_mtp.py`, and llama.cpp's `LLM_TENSOR_NEXTN_*`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import REQUIRED, Key
from weightctl.families.config_values import WholeNumber
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.mtp_tensors import BLOCK_COUNT, MOST_LAYERS, MTP_COUNT, MtpTensors
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.config_keys import Config, Fields, NamingConvention
    from weightctl.families.family import Family
    from weightctl.families.modules import TensorNames

# The config field with the number of layers for MTP.
_COUNT = "mtp_layers"
_LAYER, _HF_LAYER = "layers.{}.", "model.layers.{}."
_IN_MTP = "in_mtp"
# The fields with several values that are not those of layers, even if there are as many layers.
_NOT_OF_LAYERS = frozenset({"attention_scales", "mlp_scales", "ssm_scales"})


def mtp_line(part: str, gguf: str, hugging_face: str, *, when: str = "", **more: Any) -> Name:
    """Return a line of a part that only layers for MTP have.

    `gguf` is the rest of its name in a layer, and `when` the config field that states whether the
    checkpoint has it.
    """
    axes = {
        "projection": WeightAxes(("hidden",), ("hidden", "hidden")),
        "embedding": WeightAxes(("vocabulary",), ("hidden",)),
        "output": WeightAxes(("vocabulary",), ("hidden",)),
    }.get(part, WeightAxes(("hidden",)))
    return Name(
        module=f"{_LAYER}mtp.{part}", gguf=f"blk.{{}}.{gguf}", hugging_face=hugging_face,
        axes=axes, when=(_IN_MTP, when) if when else (_IN_MTP,), is_float32=not axes.inputs, **more,
    )  # fmt: skip


# The lines of DeepSeek-V3 and of the models that follow it.
MTP_LINES = (
    mtp_line("projection", "nextn.eh_proj", _HF_LAYER + "eh_proj"),
    mtp_line("embedding_norm", "nextn.enorm", _HF_LAYER + "enorm"),
    mtp_line("hidden_norm", "nextn.hnorm", _HF_LAYER + "hnorm"),
    mtp_line("embedding", "nextn.embed_tokens", _HF_LAYER + "embed_tokens", when="mtp_embedding"),
    mtp_line("norm", "nextn.shared_head_norm", _HF_LAYER + "shared_head.norm", when="mtp_norm"),
    mtp_line("output", "nextn.shared_head_head", _HF_LAYER + "shared_head.head",
             when="mtp_output"),
)  # fmt: skip


def with_mtp_lines(names: tuple[Name, ...], added: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return the lines of a family with those of its layers for MTP after those of all layers."""
    last = max(place for place, each in enumerate(names) if each.is_of_layers)
    return (*names[: last + 1], *added, *names[last + 1 :])


def mtp_keys(
    keys: tuple[Key, ...], name: str, *, most: int = MOST_LAYERS, in_gguf: bool = True
) -> tuple[Key, ...]:
    """Return the keys of a family with the number of its layers for MTP first.

    `name` is the key of config.json, empty if that does not state it. transformers assumes one
    layer in some families, but does not save its tensors. `in_gguf` is that of the `MtpForm`.
    """
    if not in_gguf:
        count = Key(field=_COUNT, kind=WholeNumber(0, most), default=lambda _: 0,
                    hugging_face=name)  # fmt: skip
        return (count, *keys)
    count = Key(
        field=_COUNT, kind=WholeNumber(0, most), default=0 if name else REQUIRED, gguf_default=0,
        gguf=MTP_COUNT, hugging_face=name, written=True,
    )  # fmt: skip
    return (count, *keys)


def to_block_values(key: Key, value: Any, known: Fields, family: Family) -> Any:
    """Return a field's value as GGUF has it, which counts the layers for MTP as layers."""
    count = known.get(_COUNT, 0)
    if family.mtp is None or not count:
        return value
    if key.gguf == BLOCK_COUNT:
        return value + count
    values = None if key.field in family.mtp.unstated else _list_values(key.field, value)
    if values is not None and len(values) == known["layers"]:
        return (*values, *[family.mtp.value(key.field, values, known)] * count)
    return value


def from_block_values(key: Key, value: Any, known: Fields, family: Family) -> Any:
    """Return a field's value without that of layers for MTP; the opposite of `to_block_values`.

    Raises `ValueError` if no other layer is left.
    """
    count = known.get(_COUNT, 0)
    if family.mtp is None or not count:
        return value
    if key.gguf == BLOCK_COUNT:
        if value <= count:
            raise ValueError(f"is {value}, but all of these layers are for multi-token prediction")
        return value - count
    layers, values = known.get("layers", 0), _list_values(key.field, value)
    if values is not None and layers < len(values) <= layers + count:
        return values[:layers]
    return value


def _list_values(name: str, value: object) -> tuple[Any, ...] | None:
    """Return the values of a field that has one for each layer, None for other fields."""
    if name in _NOT_OF_LAYERS:
        return None
    values: Sequence[Any] = value if is_sequence(value) else ()
    return tuple(values) if type(value) is tuple else None


def find_mtp_layers(
    family: Family, convention: NamingConvention, known: Fields, names: Iterable[str]
) -> tuple[MtpTensors, dict[str, Any]]:
    """Return the tensors of layers for MTP, and the config fields that follow from them.

    `names` are those of all tensors, and `known` the fields that the config states.
    """
    plain = {family.plain(name) if convention == "hugging_face" else name for name in names}
    found = MtpTensors.among(plain, known["layers"], known.get(_COUNT, 0))
    made: dict[str, Any] = {_COUNT: found.layers}
    for line in family.names if family.mtp is not None else ():
        flags = [each for each in line.when if each.startswith("mtp_")]
        template = None if family.mtp is None else family.mtp.adapt(line).template(convention)
        if not flags or template is None:
            continue
        first = 0 if line.restarts and convention == "hugging_face" else known["layers"]
        wanted = (f"{template}.weight".format(first + number) for number in range(found.layers))
        made[flags[0]] = any(
            (family.plain(each) if convention == "hugging_face" else each) in plain
            for each in wanted
        )
    return found, made


def with_mtp_layers(
    family: Family, config: Config, known: Fields, given: Mapping[str, Any]
) -> Config:
    """Return a config with layers for MTP; `given` are the fields of these layers."""
    count = given[_COUNT]
    if family.mtp is None or not count:
        return config
    changes: dict[str, Any] = dict(given)
    made: Any = config
    for each in fields(made):
        values = _list_values(each.name, getattr(made, each.name))
        if values is not None and len(values) == config.layers:
            more = family.mtp.value(each.name, values, known)
            changes[each.name] = (*values, *[more] * count)
    extended: Config = replace(made, **changes)
    return extended


def names_by_mtp_layer(
    checkpoint: RecognizedModel, convention: NamingConvention
) -> dict[int, set[str]]:
    """Return the names in a naming convention of the tensors of each layer for MTP."""
    found: dict[int, set[str]] = {}
    for names in _list_mtp_tensors(checkpoint):
        found.setdefault(names.layer, set()).add(names.name(convention) or names.module)
    return found


def _list_mtp_tensors(checkpoint: RecognizedModel) -> list[TensorNames]:
    config = checkpoint.config
    return [
        names
        for names in checkpoint.family.tensors(config)
        if names.line.is_of_layers and names.layer >= config.layers
    ]


def without_mtp_layers(checkpoint: RecognizedModel) -> RecognizedModel:
    """Return a model without its layers for MTP."""
    family, given = checkpoint.family, checkpoint.config
    count = getattr(given, _COUNT, 0)
    if family.mtp is None or not (count or checkpoint.lost_mtp):
        return checkpoint
    made: Any = given
    flags = {each: False for line in family.names for each in line.when if each.startswith("mtp_")}
    changes: dict[str, Any] = {_COUNT: 0, **flags}
    for each in fields(made):
        values = _list_values(each.name, getattr(made, each.name))
        if count and values is not None and len(values) == given.layers + count:
            changes[each.name] = values[: given.layers]
    left_out = _list_mtp_tensors(checkpoint)
    modules = {names.module for names in left_out}
    missing = {names.name(checkpoint.convention) for names in left_out}
    return replace(
        checkpoint,
        config=replace(made, **changes),
        fields={**checkpoint.fields, _COUNT: 0},
        tensors={name: each for name, each in checkpoint.tensors.items() if name not in modules},
        stored={name: each for name, each in checkpoint.stored.items() if name not in modules},
        missing=[name for name in checkpoint.missing if name not in missing],
        lost_mtp=0,
    )
