"""Whisper models between Hugging Face, OpenAI and whisper.cpp."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tokenizers

from copying import contents
from lazy import load_file, save_file, torch, transformers
from libwhisper import compute_logits, is_installed
from once import once, shared
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError, TokenizerError
from weightctl.extras.whisper.plans import compute_mel_filters, read_vocabulary
from weightctl.text.byte_level import from_byte_level
from weightctl.translate.tokenizer.tiktoken import derive_merges
from whisper_models import END, POSITIONS, WORDS, make_whisper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOKENS = [50258, 50259, 50359, 50363, 10, 20]


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(shared(tmp_path_factory) / "whisper", make_whisper)


@pytest.fixture(scope="module")
def mel() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal((80, 2 * POSITIONS)).astype(np.float32)


def logits_of(folder: Path, mel: np.ndarray[Any, np.dtype[np.float32]]) -> Any:
    """Return transformers' logits of the token after `TOKENS`."""
    model: Any = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    with torch.no_grad():
        tokens = torch.tensor([TOKENS])
        made = model(input_features=torch.from_numpy(mel)[None], decoder_input_ids=tokens)
    return made.logits[0, -1].numpy()


# whisper.cpp computes GELU by a table in float16. The largest logit is 0.7.
@pytest.mark.skipif(not is_installed, reason="pywhispercpp is not installed")
@pytest.mark.parametrize(("quant", "close"), [(None, 2e-3), ("Q8_0", 2e-2), ("Q5_0", 1e-1)])
def test_whisper_cpp_computes_the_logits_of_transformers(
    quant: str | None,
    close: float,
    whisper: Path,
    mel: np.ndarray[Any, np.dtype[np.float32]],
    tmp_path: Path,
) -> None:
    convert(whisper, tmp_path / "ggml-tiny.bin", quant=quant)
    found = compute_logits(tmp_path / "ggml-tiny.bin", mel, TOKENS, tmp_path)
    np.testing.assert_allclose(found, logits_of(whisper, mel), rtol=0, atol=close)


def test_openai_names_and_back_give_the_same_model(whisper: Path, tmp_path: Path) -> None:
    convert(whisper, tmp_path / "tiny.pt", names="openai")
    convert(tmp_path / "tiny.pt", tmp_path / "back")
    content = torch.load(tmp_path / "tiny.pt", weights_only=True)
    assert content.keys() == {"dims", "model_state_dict"}
    assert content["dims"] == {
        "n_mels": 80, "n_vocab": 51865, "n_audio_ctx": POSITIONS, "n_audio_state": 64,
        "n_audio_head": 2, "n_audio_layer": 2, "n_text_ctx": 32, "n_text_state": 64,
        "n_text_head": 2, "n_text_layer": 1,
    }  # fmt: skip
    before, after = (load_file(each / "model.safetensors") for each in (whisper, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    renamed = content["model_state_dict"]
    for name, origin in (
        ("encoder.blocks.1.attn.query.weight", "encoder.layers.1.self_attn.q_proj.weight"),
        ("decoder.blocks.0.cross_attn_ln.bias", "decoder.layers.0.encoder_attn_layer_norm.bias"),
        ("decoder.blocks.0.mlp.2.weight", "decoder.layers.0.fc2.weight"),
        ("encoder.ln_post.weight", "encoder.layer_norm.weight"),
        ("decoder.token_embedding.weight", "decoder.embed_tokens.weight"),
    ):
        assert torch.equal(renamed[name], before[f"model.{origin}"])


def test_transformers_loads_the_directory_of_a_file(
    whisper: Path, mel: np.ndarray[Any, np.dtype[np.float32]], tmp_path: Path
) -> None:
    convert(whisper, tmp_path / "ggml-tiny.bin", dtype="f32")
    convert(tmp_path / "ggml-tiny.bin", tmp_path / "back")
    np.testing.assert_array_equal(logits_of(tmp_path / "back", mel), logits_of(whisper, mel))
    made = {path.name for path in (tmp_path / "back").iterdir()}
    assert made >= {"config.json", "preprocessor_config.json", "vocab.json", "merges.txt"}


def test_openai_and_hugging_face_give_the_same_file(whisper: Path, tmp_path: Path) -> None:
    convert(whisper, tmp_path / "tiny.pt", names="openai")
    shutil.copy(whisper / "vocab.json", tmp_path)
    convert(tmp_path / "tiny.pt", tmp_path / "ggml-a.bin", quant="Q4_1")
    convert(whisper, tmp_path / "ggml-b.bin", quant="Q4_1")
    one, other = (open_weights(tmp_path / f"ggml-{each}.bin") for each in "ab")
    assert one.metadata == other.metadata
    assert contents(one) == contents(other)


@pytest.mark.parametrize("count", [80, 128])
def test_mel_filters_are_those_of_transformers(count: int) -> None:
    judge: Any = transformers.audio_utils.mel_filter_bank(
        num_frequency_bins=201, num_mel_filters=count, min_frequency=0.0, max_frequency=8000.0,
        sampling_rate=16000, norm="slaney", mel_scale="slaney",
    )  # fmt: skip
    np.testing.assert_allclose(compute_mel_filters(count), judge.T, rtol=1e-5, atol=1e-9)


# Tokens


def write_tokenizer(folder: Path) -> None:
    model = {"type": "BPE", "vocab": {word: n for n, word in enumerate(WORDS)}, "merges": []}
    added = [{"id": len(WORDS), "content": END, "special": True}]
    document = {"version": "1.0", "added_tokens": added, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")


def write_tiktoken(folder: Path) -> None:
    lines = [b64encode(from_byte_level(word)) + b" %d\n" % n for n, word in enumerate(WORDS)]
    (folder / "multilingual.tiktoken").write_bytes(b"".join(lines))


def test_the_empty_token_of_the_multilingual_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "multilingual.tiktoken").write_bytes(b"YQ== 0\nYg== 2\n= 3\n")
    assert read_vocabulary(str(tmp_path), 51865) == ["a", "", "b", ""]


@pytest.mark.parametrize("write", [write_tokenizer, write_tiktoken])
def test_tokens_are_read_from_each_kind_of_file(write: Any, tmp_path: Path) -> None:
    write(tmp_path)
    assert read_vocabulary(str(tmp_path), 51865) == WORDS


def test_only_words_between_both_marks_of_special_tokens_are_left_out(tmp_path: Path) -> None:
    words = ["a", "<|", "|>", "<|en|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    assert read_vocabulary(str(tmp_path), 51865) == words[:3]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (None, "the tokenizer, .*, is missing"),
        ({"a": 7, "世": 8}, "not spelled as a byte-level tokenizer does"),
        ({"a": "b"}, "the id of the token 'a' is 'b'"),
        ({"a": 60000}, "ids up to 60000"),
    ],
)
def test_missing_and_invalid_tokens_are_refused(
    vocabulary: dict[str, object] | None, message: str, tmp_path: Path
) -> None:
    if vocabulary is not None:
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    with pytest.raises(TokenizerError, match=message):
        read_vocabulary(str(tmp_path), 51865)


def train(texts: Sequence[str]) -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]  # a setter
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)  # type: ignore[call-arg]  # keywords
    tokenizer.train_from_iterator(texts, trainer)
    document: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return document


def test_merges_follow_from_the_order_of_the_tokens() -> None:
    model = train(["the cat sat on the mat, then the hat", "a theme of themes, aaaa aaaaaaa"])
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    assert derive_merges(words) == [" ".join(merge) for merge in model["merges"]]


# Refusals


def changed(whisper: Path, folder: Path, **tensors: torch.Tensor | None) -> Path:
    shutil.copytree(whisper, folder)
    path = folder / "model.safetensors"
    content = {**load_file(path), **{n.replace("__", "."): t for n, t in tensors.items()}}
    save_file({name: each for name, each in content.items() if each is not None}, path)
    return folder


def test_wrong_tensors_are_listed(whisper: Path, tmp_path: Path) -> None:
    model = changed(
        whisper,
        tmp_path / "wrong",
        model__encoder__conv1__bias=None,
        model__encoder__layer_norm__bias=torch.zeros(3),
        extra=torch.zeros(1),
    )
    with pytest.raises(ArchitectureError) as caught:
        convert(model, tmp_path / "ggml-tiny.bin")
    said = str(caught.value)
    for part in (
        "1 tensor is missing: encoder.conv1.bias",
        "1 tensor is unknown: extra",
        "1 tensor is of a wrong shape: encoder.ln_post.bias",
    ):
        assert part in said


def test_an_output_that_differs_from_the_embedding_is_refused(
    whisper: Path, tmp_path: Path
) -> None:
    own = changed(whisper, tmp_path / "own", proj_out__weight=torch.ones(51865, 64))
    with pytest.raises(ArchitectureError, match="differs from the token embedding"):
        convert(own, tmp_path / "ggml-tiny.bin")


@pytest.mark.parametrize("options", [{"names": "openai"}, {"to": "whisper.cpp"}])
def test_other_models_are_refused(
    options: dict[str, str], tiny_llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArchitectureError, match="not a Whisper model"):
        convert(tiny_llama, tmp_path / "new.bin", **options)  # type: ignore[arg-type]  # drawn options


# Families without a translation

CONFIGS: dict[str, Any] = {
    "clip": lambda: transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=dict(**SMALL, vocab_size=100),
            vision_config=dict(**SMALL, image_size=8, patch_size=4),
        )
    ),
    "siglip": lambda: transformers.SiglipModel(
        transformers.SiglipConfig(
            text_config=dict(**SMALL, vocab_size=100),
            vision_config=dict(**SMALL, image_size=8, patch_size=4),
        )
    ),
    "vit": lambda: transformers.ViTModel(
        transformers.ViTConfig(**SMALL, image_size=8, patch_size=4)
    ),
}
SMALL = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_towers_alone_change_their_dtype_and_keep_all_else(
    name: str, weightctl: Any, tmp_path: Path
) -> None:
    CONFIGS[name]().save_pretrained(tmp_path / name)
    listed = weightctl("ls", tmp_path / name)
    assert listed.stdout.splitlines()[0].endswith(f"{name}, safetensors")
    convert(tmp_path / name, tmp_path / "same")
    convert(tmp_path / name, tmp_path / "new", dtype="bf16")
    before, same, after = (
        load_file(tmp_path / each / "model.safetensors") for each in (name, "same", "new")
    )
    assert before.keys() == same.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, same[key])
        wanted = tensor.bfloat16() if tensor.is_floating_point() else tensor
        assert torch.equal(wanted, after[key])
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    own = getattr(transformers, config["architectures"][0])
    assert own.from_pretrained(tmp_path / "new").dtype == torch.bfloat16
