"""Tiny multimodal checkpoints with audio encoders, as transformers writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers

from multimodal import fill, make_tokenizer
from multimodal_cases import TINY_TEXT

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

_BINS, _SECONDS = 128, 30
_AUDIO = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_mel_bins": _BINS,
}
_WHISPER = {
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "num_mel_bins": _BINS,
}
_CLASSES = {
    "qwen2_audio": "Qwen2AudioForConditionalGeneration",
    "voxtral": "VoxtralForConditionalGeneration",
    "audioflamingo3": "AudioFlamingo3ForConditionalGeneration",
}


class Speech(NamedTuple):
    """What a checkpoint is made of; `ids` maps keys of config.json to tokens."""

    text: str
    audio: dict[str, Any]
    ids: dict[str, str]
    more_tokens: tuple[str, ...] = ()


CASES = {
    "qwen2_audio": Speech(
        "qwen2",
        _WHISPER,
        {"audio_token_index": "<|AUDIO|>"},
        ("<|audio_bos|>", "<|audio_eos|>"),
    ),
    "voxtral": Speech("llama", _AUDIO, {"audio_token_id": "[AUDIO]"}, ("[BEGIN_AUDIO]",)),
    "audioflamingo3": Speech("qwen2", _AUDIO, {"audio_token_id": "<sound>"}),
}


def make_speech(name: str, into: Path) -> None:
    """Write a case's checkpoint into a new directory."""
    transformers.utils.logging.disable_progress_bar()
    case = CASES[name]
    tokenizer = make_tokenizer(*case.ids.values(), *case.more_tokens)
    config = transformers.CONFIG_MAPPING[name](
        text_config={"model_type": case.text, **TINY_TEXT, "vocab_size": len(tokenizer)},
        audio_config=case.audio,
        **{key: tokenizer.convert_tokens_to_ids(token) for key, token in case.ids.items()},
    )
    torch.manual_seed(0)
    model = _class(config)._from_config(config, dtype=torch.float32, attn_implementation="eager")
    fill(model, torch.bfloat16)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)
    (into / "preprocessor_config.json").write_text(json.dumps({"feature_size": _BINS}))


def encode_speech_in_transformers(
    path: Path, samples: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the vectors of the tokens of 30 seconds, [tokens, hidden]."""
    config = transformers.AutoConfig.from_pretrained(path)
    model = _class(config).from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    extractor = transformers.WhisperFeatureExtractor(feature_size=_BINS, chunk_length=_SECONDS)
    spectrum = extractor(samples, sampling_rate=16000, return_tensors="pt").input_features
    inner = model.model
    with torch.no_grad():
        if config.model_type == "audioflamingo3":
            encoded = inner.audio_tower(
                spectrum, input_features_mask=torch.ones(spectrum.shape[::2])
            )
        else:
            encoded = inner.audio_tower(spectrum)
        states = encoded.last_hidden_state
        if config.model_type == "voxtral":
            states = states.reshape(-1, config.audio_config.intermediate_size)
        return inner.multi_modal_projector(states).reshape(-1, TINY_TEXT["hidden_size"]).numpy()


def _class(config: Any) -> Any:
    """Return the class of the whole model."""
    return getattr(transformers, _CLASSES[config.model_type])
