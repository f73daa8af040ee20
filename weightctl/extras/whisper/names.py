"""The tensor names of Whisper models, by OpenAI and by Hugging Face.

Sources: OpenAI's `whisper/model.py`, and transformers' `modeling_whisper.py`.
"""

from __future__ import annotations

import re

# What Hugging Face's names begin with, except in checkpoints of a model without its output.
PREFIX = "model."
# The output projection of Hugging Face, which is the token embedding.
OUTPUT = "proj_out.weight"

# Parts of a layer: OpenAI's name, and Hugging Face's.
_OF_ATTENTION = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj"))
_PARTS = dict((
    *((f"attn.{one}", f"self_attn.{other}") for one, other in _OF_ATTENTION),
    *((f"cross_attn.{one}", f"encoder_attn.{other}") for one, other in _OF_ATTENTION),
    ("attn_ln", "self_attn_layer_norm"),
    ("cross_attn_ln", "encoder_attn_layer_norm"),
    ("mlp.0", "fc1"),
    ("mlp.2", "fc2"),
    ("mlp_ln", "final_layer_norm"),
))  # fmt: skip
# Tensors outside of layers.
_WHOLE = {
    **{
        f"encoder.{conv}.{kind}": f"encoder.{conv}.{kind}"
        for conv in ("conv1", "conv2")
        for kind in ("weight", "bias")
    },
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "encoder.ln_post.weight": "encoder.layer_norm.weight",
    "encoder.ln_post.bias": "encoder.layer_norm.bias",
    "decoder.token_embedding.weight": "decoder.embed_tokens.weight",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.ln.weight": "decoder.layer_norm.weight",
    "decoder.ln.bias": "decoder.layer_norm.bias",
}
_PARTS_BACK = {other: one for one, other in _PARTS.items()}
_WHOLE_BACK = {other: one for one, other in _WHOLE.items()}
_LAYER = re.compile(r"(encoder|decoder)\.(blocks|layers)\.(\d{1,4})\.(.+)\.(weight|bias)")


def to_hugging_face(name: str) -> str | None:
    """Return Hugging Face's name for a name of OpenAI's, without `PREFIX`; None if unknown."""
    if name in _WHOLE:
        return _WHOLE[name]
    found = _LAYER.fullmatch(name)
    if found is None or found[2] != "blocks" or found[4] not in _PARTS:
        return None
    return f"{found[1]}.layers.{found[3]}.{_PARTS[found[4]]}.{found[5]}"


def to_openai(name: str) -> str | None:
    """Return OpenAI's name for a name of Hugging Face's, with or without `PREFIX`."""
    plain = name.removeprefix(PREFIX)
    if plain in _WHOLE_BACK:
        return _WHOLE_BACK[plain]
    found = _LAYER.fullmatch(plain)
    if found is None or found[2] != "layers" or found[4] not in _PARTS_BACK:
        return None
    return f"{found[1]}.blocks.{found[3]}.{_PARTS_BACK[found[4]]}.{found[5]}"
