"""What the files of towers cannot say: kinds of values, checks, defaults, and other config.json."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import Key
from weightctl.families.config_values import FLAG, Choice, Real, Reals, show_value
from weightctl.families.configs import shortest
from weightctl.families.layers import Layered
from weightctl.families.modules import WeightAxes
from weightctl.families.steps import AS_SCALAR
from weightctl.text.untyped import is_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields
    from weightctl.families.modules import Name

# The number of channels of an image.
CHANNELS = 3
_VISION, _AUDIO = "vision_config", "audio_config"
_MISSING = object()

# Kinds of values

_MOST = 64


class _Shortest(NamedTuple):
    """A list of numbers, each as the shortest decimal with the same float32 value."""

    kind: Reals

    def read(self, content: object) -> tuple[float, ...]:
        return tuple(map(shortest, self.kind.read(content)))

    @property
    def gguf_type(self) -> str:
        """The type of an array of numbers."""
        return self.kind.gguf_type

    def write(self, value: Any) -> list[float]:
        return self.kind.write(value)


class _OneOver(NamedTuple):
    """An integer that is stored as its reciprocal."""

    def read(self, content: object) -> int:
        if isinstance(content, int | float) and 1 / _MOST <= content <= 1:
            number = round(1 / content)
            if abs(number * content - 1) < 1e-6:
                return number
        raise ValueError(f"is {show_value(content)}; it must be 1 / an integer of at most {_MOST}")

    @property
    def gguf_type(self) -> str:
        return "f32"

    def write(self, value: int) -> float:
        return 1 / value


BY_CHANNEL = _Shortest(Reals(Real(-1e6, 1e6), CHANNELS))
FLAGS = Layered(FLAG)
ONE_OVER = _OneOver()

# Config.json in the form that the keys describe


def with_rope(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document with the base of RoPE where transformers 5 states it, as a float."""
    vision = document.get(_VISION)
    if not is_object(vision):
        return document
    stated = vision.get("rope_parameters")
    base = (stated if is_object(stated) else vision).get("rope_theta", _MISSING)
    if type(base) is int:
        base = float(base)
    rope = {} if base is _MISSING else {"rope_theta": base}
    return {**document, _VISION: {**vision, "rope_parameters": rope}}


def standard_gemma4(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document with the base of RoPE as a float, and an encoder of images."""
    if not is_object(document.get(_VISION)):
        raise ValueError("`vision_config` is missing: the model has no image encoder")
    return with_rope(document)


def with_one_side(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document whose images and patches have one size in place of height and width."""
    vision = document.get(_VISION)
    if not is_object(vision):
        return document
    made = dict(vision)
    for name in ("image_size", "patch_size"):
        sides = made.get(name)
        if is_sequence(sides) and len(sides) == 2:
            if sides[0] != sides[1]:
                raise ValueError(f"`vision_config.{name}`: llama.cpp only has squares")
            made[name] = sides[0]
    return {**document, _VISION: made}


# Whisper's own names of sizes in config.json, and those of newer configs.
_WHISPER_NAMES = {
    "hidden_size": "d_model",
    "intermediate_size": "encoder_ffn_dim",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}
_USUAL_NAMES = {own: usual for usual, own in _WHISPER_NAMES.items()}


def _with_sizes(document: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a document with other names of the sizes of its audio encoder."""
    audio = document.get(_AUDIO)
    if not is_object(audio):
        return document
    made = dict(audio)
    for other, wanted in names.items():
        if other in made:
            made.setdefault(wanted, made.pop(other))
    return {**document, _AUDIO: made}


with_whisper_sizes = partial(_with_sizes, names=_WHISPER_NAMES)
with_usual_sizes = partial(_with_sizes, names=_USUAL_NAMES)

# Checks that several towers have


def count_patches(fields: Fields) -> int:
    """Return the number of patches of an image; raises `ValueError` if they do not fill it."""
    side, rest = divmod(fields["image_size"], fields["patch_size"])
    if rest or not side:
        raise ValueError(
            f"the image size {fields['image_size']} is not a multiple of the patch size "
            f"{fields['patch_size']}"
        )
    return int(side * side)


def check_patches(fields: Fields) -> Fields:
    """Return the fields with a position for each patch."""
    return {**fields, "positions": count_patches(fields)}


def find_merged(fields: Fields) -> Fields:
    """Return the fields with the width of merged patches."""
    return {**fields, "merged": fields["hidden"] * fields["merge"] ** 2}


def check_output(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if the text model has another hidden size."""
    if fields["output"] != fields["text_hidden"]:
        raise ValueError(
            f"the image encoder returns vectors of {fields['output']} values, but the hidden size "
            f"of the text model is {fields['text_hidden']}"
        )
    return fields


# Activations

# What the words in config.json mean: the flag in GGUF that is true. Both are false for
# `gelu_quick`.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "gelu_quick",
    "silu": "silu",
    "swish": "silu",
}


def activation_keys(called: str, *words: str) -> tuple[Key, ...]:
    """Return the keys of the activation: a word in config.json, and two flags in GGUF.

    `called` is the name in config.json. The first of the `words` is the default. For each meaning,
    the first word is written.
    """
    meanings = {word: _ACTIVATIONS[word] for word in words}

    # A flag is only written if it is true: llama.cpp refuses a file with both.
    def flag(name: str) -> Key:
        return Key(
            field=name,
            kind=FLAG,
            gguf=f"clip.use_{name}",
            gguf_default=lambda fields: True if fields.get("activation") == name else None,
        )

    def from_flags(fields: Fields) -> str:
        found = [name for name in ("gelu", "silu") if fields[name]] or ["gelu_quick"]
        if len(found) != 1 or found[0] not in meanings.values():
            stated = " and ".join(f"`clip.use_{name}`" for name in found if fields.get(name))
            stated = stated or "neither flag"
            raise ValueError(f"is not supported: {stated} of the activation is set")
        return found[0]

    return (
        flag("gelu"),
        flag("silu"),
        Key(field="activation", kind=Choice(meanings), default=next(iter(meanings.values())),
            gguf_default=from_flags, hugging_face=f"{_VISION}.{called}", written=True),
    )  # fmt: skip


# Gemma 3

_USUAL_MERGE = 4


def _find_gemma3_merge(fields: Fields) -> int:
    """Return how many patches along each side become one token."""
    side, tokens = isqrt(count_patches(fields)), isqrt(fields["image_tokens"])
    if tokens**2 != fields["image_tokens"] or side % tokens:
        raise ValueError(
            f"cannot be computed: {side} x {side} patches do not become "
            f"{fields['image_tokens']} tokens by averages of squares"
        )
    return side // tokens


def state_gemma3_merge(fields: Fields) -> int | None:
    """Return what GGUF states: None for the usual number, which llama.cpp assumes."""
    merge = _find_gemma3_merge(fields) if "image_tokens" in fields else _USUAL_MERGE
    return None if merge == _USUAL_MERGE else merge


def count_gemma3_tokens(fields: Fields) -> int:
    """Return the number of tokens of an image."""
    side = isqrt(count_patches(fields)) // (fields["stated_merge"] or _USUAL_MERGE)
    return max(1, side * side)


def check_gemma3(fields: Fields) -> Fields:
    """Return the fields with positions and merged patches; raises `ValueError` if these differ."""
    return {**check_patches(fields), "merge": _find_gemma3_merge(fields)}


# Gemma 4

_LIMITS = ("input_min", "input_max", "output_min", "output_max")


def with_limits(names: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return lines with those of the limits of the inputs and outputs of projections."""
    limits = tuple(
        replace(
            line,
            module=f"{line.module}.{limit}",
            hugging_face=line.hugging_face and line.hugging_face.removesuffix(".linear"),
            axes=WeightAxes(("single",)),
            change=AS_SCALAR,
            when=("has_limits",),
            ends={"gguf": f".{limit}", "hugging_face": f".{limit}"},
        )
        for line in names
        if line.is_of_layers and line.axes.inputs
        for limit in _LIMITS
    )
    behind = 1 + max(number for number, line in enumerate(names) if line.is_of_layers)
    return (*names[:behind], *limits, *names[behind:])


def check_gemma4(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` for heads that llama.cpp does not support."""
    if fields["head_dim"] * fields["heads"] != fields["hidden"]:
        raise ValueError(
            f"{fields['heads']} heads of {fields['head_dim']} elements are not as wide as the "
            f"hidden size {fields['hidden']}, as llama.cpp assumes"
        )
    if fields["kv_heads"] != fields["heads"]:
        raise ValueError("llama.cpp needs as many heads of keys and values as of queries")
    return fields


# PaddleOCR-VL


def check_paddleocr(fields: Fields) -> Fields:
    """Return the fields with a position for each patch, if the size of images is known."""
    return check_patches(fields) if fields["image_size"] else fields


def find_root_of_pixels(fields: Fields) -> int:
    """Return the side of the largest image."""
    return isqrt(fields["max_pixels"])


# GLM-4V


def check_glm4v(fields: Fields) -> Fields:
    """Return the fields with positions, and the widths of the MLPs: in layers, and the last one."""
    widths = fields["text_hidden"], fields["intermediate"]
    if fields["has_query_norm"]:  # GLM-OCR
        widths = fields["intermediate"], CHANNELS * fields["text_hidden"]
    return {**check_patches(fields), "intermediate": widths[0], "adapter_inner": widths[1]}


# InternVL

# The hidden size and the number of layers for which llama.cpp computes RMS norms.
_WITH_RMS = (3200, 45)


def find_internvl_norm(fields: Fields) -> str:
    return "rms" if (fields["hidden"], fields["layers"]) == _WITH_RMS else "layer"


def count_internvl_tokens(fields: Fields) -> int:
    """Return the number of tokens of an image."""
    return int(count_patches(fields) // fields["merge"] ** 2)


def check_internvl(fields: Fields) -> Fields:
    """Return the fields with positions; raises `ValueError` if they contradict each other."""
    if fields["norm"] != find_internvl_norm(fields):
        hidden, layers = _WITH_RMS
        raise ValueError(
            f"`vision_config.norm_type`: llama.cpp computes RMS norms for a hidden size of {hidden}"
            f" and {layers} layers, and layer norms otherwise"
        )
    if fields["has_query_norm"] and fields["norm"] != "rms":
        raise ValueError(
            "`vision_config.use_qk_norm`: llama.cpp norms queries and keys like the layers, but "
            "transformers computes RMS norms"
        )
    merge, patches = fields["merge"], count_patches(fields)
    side = fields["image_size"] // fields["patch_size"]
    if side % merge:
        raise ValueError(
            f"{side} x {side} patches cannot be merged by squares of {merge} x {merge}"
        )
    tokens = count_internvl_tokens(fields)
    if fields["image_tokens"] != tokens:
        raise ValueError(
            f"`image_seq_length` is {fields['image_tokens']}, but an image has {tokens} tokens"
        )
    return {**fields, "positions": patches + 1, "has_norm_bias": fields["norm"] == "layer"}


# Llama 4


def check_llama4(fields: Fields) -> Fields:
    """Return the fields with positions; raises `ValueError` if widths differ."""
    if fields["adapter_inner"] != fields["adapter_outer"]:
        raise ValueError("`projector_input_dim` and `projector_output_dim` differ")
    if fields["vision_output"] != fields["adapter_outer"]:
        raise ValueError("`vision_output_dim` and `projector_output_dim` differ")
    return {**fields, "positions": count_patches(fields) + 1}


# Pixtral

# llama.cpp's epsilon of the norm of merged patches.
_EPSILON = 1e-5


def find_difference_of_pixtral(fields: Fields) -> str:
    """Return what llama.cpp computes differently from transformers."""
    epsilon = fields.get("text_epsilon", _EPSILON)
    if not fields["has_merger"] or epsilon == _EPSILON:
        return ""
    return f"it norms the merged patches with the epsilon {_EPSILON:g} instead of {epsilon:g}"


# Qwen2.5-VL

_USUAL_FULL = (7, 15, 23, 31)
# The published models have this value, and transformers' default is another one.
_FRAMES_PER_SECOND = "tokens_per_second"
_USUAL_FRAMES = 2


def list_full_layers(fields: Fields) -> tuple[int, ...]:
    if "full_every" not in fields:
        return _USUAL_FULL
    every = fields["full_every"]
    return tuple(range(every - 1, fields["layers"], every))


def find_full_period(fields: Fields) -> int:
    """Return the n of the layers without windows, which are every n-th one."""
    if "full_layers" not in fields:
        raise ValueError("is missing")
    full, layers = fields["full_layers"], fields["layers"]
    every = int(full[0]) + 1 if full else int(layers) + 1
    if full != tuple(range(every - 1, layers, every)):
        raise ValueError(
            f"does not follow from `fullatt_block_indexes` = {show_value(full)}: llama.cpp has "
            f"attention without windows in every n-th of the {layers} layers"
        )
    return every


def check_qwen2_5vl(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` for layers with windows that GGUF cannot state."""
    find_full_period({"full_layers": list_full_layers(fields), **fields})
    return fields


def complete_qwen2_5vl(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the frames per second of the published models."""
    return {**document, _VISION: {_FRAMES_PER_SECOND: _USUAL_FRAMES, **document[_VISION]}}


def find_difference_of_qwen2_5vl(fields: Fields) -> str:
    """Return what llama.cpp computes differently from transformers."""
    frames = fields.get("frames_per_second", _USUAL_FRAMES)
    if frames == _USUAL_FRAMES:
        return ""
    return f"it does not get `{_FRAMES_PER_SECOND}` ({frames}), which is about the frames of videos"


# Qwen3-VL

_USUAL_DEEPSTACK = (8, 16, 24)


def list_deepstack(fields: Fields) -> tuple[int, ...]:
    """Return the layers whose outputs are projected."""
    if "has_deepstack" not in fields:
        return _USUAL_DEEPSTACK
    return tuple(number for number, each in enumerate(fields["has_deepstack"]) if each)


def flag_deepstack(fields: Fields) -> tuple[bool, ...]:
    """Return for each layer whether its output is projected."""
    chosen, layers = fields.get("deepstack", ()), fields["layers"]
    if chosen and chosen[-1] >= layers:
        raise ValueError(f"cannot be computed: there is no layer {chosen[-1]} of {layers} layers")
    return tuple(number in chosen for number in range(layers))


def find_image_size(fields: Fields) -> int:
    """Return the size of the images that have the learned positions."""
    side = isqrt(fields["positions"])
    if side**2 != fields["positions"]:
        raise ValueError(f"the {fields['positions']} learned positions are not those of a square")
    return int(side * fields["patch_size"])


def check_qwen3vl(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if they contradict each other."""
    if len(fields["has_deepstack"]) != fields["layers"]:
        raise ValueError(
            f"`clip.vision.is_deepstack_layers` has {len(fields['has_deepstack'])} elements "
            f"instead of {fields['layers']}"
        )
    find_image_size(fields)
    return fields


# Voxtral

_STACKED = 4


def check_voxtral(fields: Fields) -> Fields:
    """Return the fields with the width of the projection; raises `ValueError` if it differs."""
    if fields["intermediate"] != _STACKED * fields["hidden"]:
        raise ValueError(
            f"the projection takes vectors of {fields['intermediate']} values, but llama.cpp puts "
            f"{_STACKED} vectors of {fields['hidden']} values in a row"
        )
    return {**fields, "projected": fields["intermediate"]}
