"""Apertus: a llama with norms of queries and keys, and a plain MLP with a learned activation.

Names and keys: transformers' `modeling_apertus.py` and `XIELUActivation` in its `activations.py`;
llama.cpp's `models/apertus.cpp` and `conversion/llama.py`. The numbers of xIELU are tensors of each
layer in Hugging Face's convention, and lists in GGUF's metadata.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, with_keys
from weightctl.families.config_values import FLAG, Exactly, Real
from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.layers import LayerValues
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.rope import ROPE_FACTORS, standard, with_rope_defaults
from weightctl.families.rope_factors import LLAMA3_LINES
from weightctl.families.usual_names import DECODER, adapt
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from weightctl.families.config_keys import Fields

_BASE = 12000000.0
# transformers' defaults if config.json does not have RoPE keys.
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": _BASE,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_NUMBERS = LayerValues(Real(-1e9, 1e9, is_closed=True))
_ACTIVATION = "llama.cpp supports only `xielu` in apertus models"
# For each number of xIELU, whether its tensor has a dimension.
_XIELU = {"alpha_n": True, "alpha_p": True, "beta": False, "eps": False}


def _make_numbers(config: Any, *, field: str, has_axis: bool) -> NDArray[Any] | None:
    """Return one of the numbers of xIELU for each layer, as Hugging Face's tensors contain it."""
    import numpy as np

    given = getattr(config, field)
    if given == ():
        return None
    numbers = np.broadcast_to(np.array(given, np.float32), (config.layers,))
    return numbers[:, None] if has_axis else numbers


def _add_number(fields: Fields, numbers: NDArray[Any], *, field: str) -> Fields:
    """Return the fields with the number of the next layer added to its list."""
    return {**fields, field: (*fields.get(field, ()), float(numbers.ravel()[0]))}


def _list_numbers() -> Iterator[Name]:
    for name, has_axis in _XIELU.items():
        field = f"xielu_{name}"
        yield Name(
            module=f"layers.{{}}.mlp.xielu.{name}",
            gguf=None,
            hugging_face=f"model.layers.{{}}.mlp.act_fn.{name}",
            axes=WeightAxes(("single",) if has_axis else ()),
            is_float32=True,
            when=("has_xielu_weights",),
            ends={"hugging_face": ""},
            made=partial(_make_numbers, field=field, has_axis=has_axis),
            add_fields=partial(_add_number, field=field),
        )


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return standard(with_rope_defaults(document, _ROPE))


def _check(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if a list does not have a number for each layer."""
    for name in _XIELU:
        found, layers = fields.get(f"xielu_{name}"), fields["layers"]
        if is_sequence(found) and len(found) != layers:
            raise ValueError(f"`xielu.{name}` has {len(found)} values for {layers} layers")
    return check_decoder(fields)


_LINES = adapt(
    DECODER,
    {
        "attention_norm": "attention_layernorm",
        "attention.q_norm": {},
        "attention.k_norm": {},
        "mlp_norm": "feedforward_layernorm",
        "mlp.gate": None,
        **LLAMA3_LINES,
    },
)

FAMILY = Family(
    name="apertus",
    model_types={
        "apertus": ModelType(
            class_name="ApertusForCausalLM",
            defaults={
                "vocabulary": 131072,
                "context": 65536,
                "intermediate": 14336,
                "norm_epsilon": 1e-5,
                "rope_base": _BASE,
            },
        )
    },
    blocks={"qk_norm": "head", "gated": False},
    names=(*_LINES[:-2], *_list_numbers(), *_LINES[-2:]),
    keys=with_keys(
        DECODER_KEYS,
        *BIASES[:2],
        ROPE_FACTORS,
        Key(field="activation", kind=Exactly("xielu", _ACTIVATION), default="xielu",
            gguf_default="xielu", hugging_face="hidden_act"),
        Key(field="has_xielu_weights", kind=FLAG, default=True, gguf_default=False),
        *(Key(field=f"xielu_{name}", kind=_NUMBERS, gguf=f"xielu.{name}")
          for name in _XIELU),
    ),
    fusions=(qkv_form(),),
    standard=_standard,
    checked=_check,
)  # fmt: skip
