"""Audio encoders like that of Whisper: their config, keys and tensors.

Names and keys: transformers' `modeling_qwen2_audio.py`, `modeling_voxtral.py` and
`modeling_audioflamingo3.py`; llama.cpp's `conversion/ultravox.py` and
`tools/mtmd/models/whisper-enc.cpp`. The converter rounds the kernels of the convolutions to
float16; they are written as float32 here, which llama.cpp reads, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weightctl.families.keys import Key, RowCount
from weightctl.families.kinds import EPSILON, HEADS, LAYERS, SIZE, Exactly
from weightctl.families.steps import AS_COLUMN
from weightctl.families.towers.tower import TEXT_WIDTH, block, part
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Name
    from weightctl.families.keys import Fields

# Windows of 30 seconds, and 50 positions per second.
_POSITIONS = 1500
# It is not in config.json: transformers has PyTorch's default.
_EPSILON = 1e-5
_KERNEL = 3
_TOWER = "audio_tower."
_LAYER = {
    "ln1": "self_attn_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln2": "final_layer_norm",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}
# Whisper's own names of sizes in config.json, and those of newer configs.
WHISPER_NAMES = {
    "hidden_size": "d_model",
    "intermediate_size": "encoder_ffn_dim",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig:
    """The config of an audio encoder and its projection.

    - `text_hidden`: the hidden size of the text model.
    - `bins`: the number of bands of the mel spectrogram.
    - `positions`: the number of positions.
    - `projected`: the number of values that the projection takes.
    - `has_projector_bias`: whether the projection has biases.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    text_hidden: int
    bins: int
    positions: int = _POSITIONS
    projected: int = 0
    has_projector_bias: bool = False

    @property
    def vocabulary(self) -> int:
        """0: a tower has no tokens."""
        return 0

    @property
    def context(self) -> int:
        """The number of positions."""
        return self.positions

    @property
    def head_dim(self) -> int:
        """The number of elements of a head."""
        return self.hidden // self.heads

    @property
    def kernel_size(self) -> int:
        """The number of spectra that a value of a convolution depends on."""
        return _KERNEL


def audio_keys(projector: str, *, is_of_whisper: bool = False) -> tuple[Key, ...]:
    """Return the keys of an audio encoder.

    `is_of_whisper` states that config.json has Whisper's own names of sizes.
    """

    def size(name: str, gguf: str, hugging_face: str, default: int, kind: Any = SIZE) -> Key:
        own = WHISPER_NAMES[hugging_face] if is_of_whisper else hugging_face
        return Key(field=name, kind=kind, gguf=f"clip.audio.{gguf}", default=default,
                   hugging_face=f"audio_config.{own}")  # fmt: skip

    return (
        Key(field="has_audio", gguf="clip.has_audio_encoder", gguf_default=True, written=True,
            kind=Exactly(True, "the file has no audio encoder")),
        Key(field="projector", gguf="clip.projector_type", gguf_default=projector, written=True,
            kind=Exactly(projector, f"this is not a projection of {projector}")),
        Key(field="text_hidden", kind=SIZE, gguf="clip.audio.projection_dim",
            hugging_face=TEXT_WIDTH),
        size("hidden", "embedding_length", "hidden_size", 1280),
        size("intermediate", "feed_forward_length", "intermediate_size", 5120),
        size("layers", "block_count", "num_hidden_layers", 32, LAYERS),
        size("heads", "attention.head_count", "num_attention_heads", 20, HEADS),
        Key(field="bins", kind=SIZE, gguf="clip.audio.num_mel_bins", default=128,
            hugging_face="audio_config.num_mel_bins"),
        Key(field="norm_epsilon", kind=EPSILON, gguf="clip.audio.attention.layer_norm_epsilon",
            default=_EPSILON),
        Key(field="positions", seen=RowCount("a.position_embd.weight"), default=_POSITIONS,
            gguf_default=_POSITIONS, hugging_face="audio_config.max_source_positions",
            kind=Exactly(_POSITIONS, "llama.cpp encodes windows of 30 seconds, 1500 positions")),
        Key(field="activation", default="gelu", gguf_default="gelu",
            hugging_face="audio_config.activation_function",
            kind=Exactly("gelu", "llama.cpp has GELU in audio encoders")),
        Key(field="is_scaled", default=False, gguf_default=False,
            hugging_face="audio_config.scale_embedding",
            kind=Exactly(False, "llama.cpp does not scale the input of the first layer")),
    )  # fmt: skip


def with_usual_sizes(document: Mapping[str, Any], *, is_of_whisper: bool) -> Mapping[str, Any]:
    """Return a document whose sizes have Whisper's own names, or the other ones."""
    audio = document.get("audio_config")
    if not is_object(audio):
        return document
    made = dict(audio)
    for usual, own in WHISPER_NAMES.items():
        wanted, other = (own, usual) if is_of_whisper else (usual, own)
        if other in made:
            made.setdefault(wanted, made.pop(other))
    return {**document, "audio_config": made}


def encoder_lines() -> tuple[Name, ...]:
    """Return the lines of the encoder, without the projection."""
    made: list[Name] = []
    for number, inputs in (("1", "bins"), ("2", "hidden")):
        gguf, name = f"a.conv1d.{number}", f"{_TOWER}conv{number}"
        made += (
            part(f"conv.{number}", gguf, name, "hidden", inputs, kernel=("kernel_size",),
                 is_float32=True),
            part(f"conv.{number}.bias", gguf, name, change=AS_COLUMN, is_float32=True,
                 ends={"gguf": ".bias", "hugging_face": ".bias"}),
        )  # fmt: skip
    layers = block(f"{_TOWER}layers.", _LAYER, bias=True, gguf="a.blk.")
    return (
        *made,
        part("positions", "a.position_embd", f"{_TOWER}embed_positions", "positions", "hidden",
             is_float32=True),
        # Keys have no bias.
        *(replace(line, bias=not line.module.endswith("attn_k")) for line in layers),
        part("norm", "a.post_ln", f"{_TOWER}layer_norm", bias=True),
    )  # fmt: skip


def describe_extractor(fields: Fields) -> Mapping[str, Any]:
    """Return what GGUF does not state of preprocessor_config.json."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": fields["bins"],
        "sampling_rate": 16000,
        "hop_length": 160,
        "chunk_length": 30,
        "n_fft": 400,
        "padding_value": 0.0,
        "padding_side": "right",
        "return_attention_mask": True,
    }
