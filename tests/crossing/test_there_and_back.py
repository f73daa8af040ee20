"""A model is the same after conversion from Hugging Face's directory to GGUF and back."""

from __future__ import annotations

import json
import os
import shutil
from itertools import product
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from tokenizers import AddedToken, normalizers

import families
import family_tokenizers
from each import each, usual
from family_tokenizers import TEXT, WHOLE
from lazy import load_file, torch, transformers
from llama_cpp import ask, cosines, generate, ggml_quantize, log_softmax, mean_divergence
from small_models import llama
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from conftest import Completed


# llama.cpp does not use these tensors, and GGUF has no names for them.
LOST = {"bert": {"pooler.dense.weight", "pooler.dense.bias"}}
ONE_MORE = {"gemma2", "gemma3"}  # families whose norms are `1 + w` in GGUF
# Config keys that can differ, and why they do not matter for running the model.
IGNORED = {
    "_name_or_path": "where it was loaded from",
    "transformers_version": "who wrote it",
    "initializer_range": "how numbers are drawn before training",
    "use_cache": "a default of the program that runs it",
    "attention_dropout": "of training",
    "attention_probs_dropout_prob": "of training",
    "hidden_dropout_prob": "of training",
    "attn_pdrop": "of training",
    "embd_pdrop": "of training",
    "resid_pdrop": "of training",
    "classifier_dropout": "of training",
    "router_aux_loss_coef": "of training",
    "router_jitter_noise": "of training",
    "output_router_logits": "of training",
}

# Encoders do not generate; the tokens in GGUF are those that the tokenizer adds around a text.
# One for each kind of tokenizer.
USUAL = ["llama", "qwen2", "gemma3", "gpt2"]
ENCODERS = {"bos_token_id", "eos_token_id"}


def norms_within_one_rounding(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the values differ at most by the rounding of `1 + w` in float32."""
    step = np.spacing(1 + np.abs(expected.float().numpy()))
    return bool((np.abs(found.float().numpy() - expected.float().numpy()) <= step).all())


@pytest.mark.parametrize(
    ("name", "dtype"),
    usual(
        [("llama", "bf16"), *((name, "f32") for name in [*USUAL, "bert"])],
        product(families.FAMILIES, ["f32", "bf16"]),
    ),
)
def test_tensors_are_the_same_bytes(
    name: str, dtype: str, family: Callable[[str], families.Made], back: Callable[..., Path]
) -> None:
    expected = load_file(family(name).path.with_name(dtype) / "model.safetensors")
    found = load_file(back(name, dtype) / "model.safetensors")
    assert found.keys() == expected.keys() - LOST.get(name, set())
    for key, tensor in found.items():
        was = expected[key]
        assert tensor.dtype == was.dtype, key
        assert tensor.shape == was.shape, key
        if name in ONE_MORE and "norm" in key:
            assert was.abs().max() > 0.1
            assert norms_within_one_rounding(tensor, was), key
        else:
            assert torch.equal(tensor.view(torch.uint8), was.view(torch.uint8)), key


def document(directory: Path) -> dict[str, Any]:
    found = transformers.AutoConfig.from_pretrained(directory).to_dict()
    rope = found.get("rope_parameters") or {}
    if rope.get("type") == rope.get("rope_type"):  # the older name in transformers
        rope.pop("type", None)
    return {key: value for key, value in found.items() if key not in IGNORED}


@pytest.mark.parametrize("name", usual([*USUAL, "bert"], families.FAMILIES))
def test_the_config_says_the_same(
    name: str, family: Callable[[str], families.Made], back: Callable[..., Path]
) -> None:
    found, expected = document(back(name)), document(family(name).path)
    for key in () if name in families.CAUSAL else ENCODERS:
        del found[key], expected[key]
    assert found == expected


@pytest.mark.parametrize("name", usual([*USUAL, "bert"], families.FAMILIES))
def test_the_tokenizer_does_the_same(
    name: str, family: Callable[[str], families.Made], back: Callable[..., Path]
) -> None:
    before = transformers.AutoTokenizer.from_pretrained(family(name).path)
    after = transformers.AutoTokenizer.from_pretrained(back(name))
    assert after.get_vocab() == before.get_vocab()
    assert after.special_tokens_map == before.special_tokens_map
    assert after.chat_template == before.chat_template
    specials = "".join(f"{text} a {text}" for text in before.all_special_tokens)
    for text in (TEXT, specials, "", " ", "  a", "a\n"):
        tokens = before(text)["input_ids"]
        assert after(text)["input_ids"] == tokens, text
        for skips in (True, False):
            decoded = before.decode(tokens, skip_special_tokens=skips)
            assert after.decode(tokens, skip_special_tokens=skips) == decoded, text


# A GGUF that llama.cpp runs becomes a directory that transformers runs.


@pytest.mark.parametrize("name", usual(USUAL, families.CAUSAL))
def test_transformers_says_what_llama_cpp_says(
    name: str,
    family: Callable[[str], families.Made],
    llama_output: Callable[[str], families.Said],
    back: Callable[..., Path],
) -> None:
    made, expected = family(name), llama_output(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        back(name), dtype=torch.float32, attn_implementation="eager"
    )
    assert families.greedy(model, made.prompt) == expected.follows
    found = families.log_probabilities(model, made.tokens)
    wanted = log_softmax(expected.numbers)
    chosen = np.arange(families.PROMPT, len(made.tokens)) - 1, made.follows
    assert np.abs(found - wanted)[chosen].max() < 2e-2
    assert np.abs(found - wanted)[wanted > np.log(1e-3)].max() < 5e-2


def test_transformers_makes_the_embeddings_that_llama_cpp_makes(
    family: Callable[[str], families.Made],
    llama_output: Callable[[str], families.Said],
    back: Callable[..., Path],
) -> None:
    model = transformers.AutoModel.from_pretrained(back("bert"), dtype=torch.float32)
    with torch.inference_mode():
        found = model(torch.tensor([family("bert").prompt])).last_hidden_state[0].numpy()
    assert cosines(found, llama_output("bert").numbers).min() > 0.9999


@pytest.mark.parametrize("name", usual([*USUAL, "bert"], families.FAMILIES))
def test_tokenizers_agree(
    name: str, llama_output: Callable[[str], families.Said], back: Callable[..., Path]
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(back(name))
    expected = llama_output(name)
    text = families.FAMILIES[name].text
    assert tokenizer(text)["input_ids"] == expected.tokens
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == expected.plain_tokens


SPECIAL = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


# The first is for blocks, which the output does not have; the second for SentencePiece.
MEANINGLESS = {"general.quantization_version", "tokenizer.ggml.add_space_prefix"}


@pytest.fixture(scope="module")
def smollm2_directory(smollm2: Path, converted: Callable[..., Path]) -> Path:
    return converted(smollm2, "smollm2-hf", "--dtype", "f32")


@pytest.mark.long
@pytest.mark.real
def test_smollm2_says_in_transformers_what_it_says_in_llama_cpp(
    smollm2_directory: Path, converted: Callable[..., Path]
) -> None:
    again = converted(smollm2_directory, "smollm2-again.gguf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_directory)
    prompt = tokenizer("The capital of France is")["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_directory, dtype=torch.float32
    )
    model.generation_config.eos_token_id = None  # continue after the end, as in llama.cpp here
    every = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=32)[0].tolist()
    follows, logits, tokens, text, special = ask(
        again,
        ("generate", prompt, 32),
        ("logits", every),
        ("tokenize", TEXT),
        ("detokenize", tokenizer(TEXT)["input_ids"]),
        ("tokenize", SPECIAL),
    )
    assert follows == every[len(prompt) :]
    chosen = np.arange(len(prompt), len(every))
    found = log_softmax(logits)[chosen - 1, follows]
    expected = families.log_probabilities(model, every)[chosen - 1, follows]
    assert np.abs(found - expected).max() < 2e-2
    assert "Paris" in tokenizer.decode(follows)
    assert tokenizer(TEXT)["input_ids"] == tokens
    assert tokenizer.decode(tokens) == text
    assert tokenizer(SPECIAL)["input_ids"] == special


@pytest.mark.long
@pytest.mark.real
def test_smollm2_goes_to_hugging_face_and_back_without_a_change(
    smollm2: Path, smollm2_directory: Path, converted: Callable[..., Path]
) -> None:
    direct = open_weights(converted(smollm2, "smollm2-f32.gguf", "--dtype", "f32"))
    again = open_weights(converted(smollm2_directory, "smollm2-again.gguf"))
    assert dict(again.items()).keys() == dict(direct.items()).keys()
    for name, node in direct.items():
        assert node.data().view() == again[name].data().view(), name
    expected, found = dict(direct.metadata), dict(again.metadata)
    assert expected.keys() - found.keys() == MEANINGLESS
    assert {key: found[key] for key in expected.keys() - MEANINGLESS} == {
        key: expected[key] for key in expected.keys() - MEANINGLESS
    }


# A model that transformers saved and weightctl converted to GGUF is the same in llama.cpp.


NO_POOLING = 0


@pytest.mark.parametrize("name", usual(USUAL, families.CAUSAL))
def test_llama_cpp_says_what_transformers_says(
    name: str, family: Callable[[str], families.Made], llama_output: Callable[[str], families.Said]
) -> None:
    made, found = family(name), llama_output(name)
    assert found.follows == made.follows
    difference = np.abs(log_softmax(found.numbers) - made.expected)
    chosen = np.arange(families.PROMPT, len(made.tokens)) - 1, made.follows
    assert difference[chosen].max() < 2e-2
    # Also all likely tokens at other places; llama.cpp uses a float16 table for GELU.
    assert difference[made.expected > np.log(1e-3)].max() < 5e-2


def test_llama_cpp_makes_the_embeddings_that_transformers_makes(
    family: Callable[[str], families.Made], llama_output: Callable[[str], families.Said]
) -> None:
    assert cosines(llama_output("bert").numbers, family("bert").expected).min() > 0.9999


@pytest.mark.parametrize("name", usual([*USUAL, "bert"], families.FAMILIES))
def test_llama_cpp_cuts_text_into_the_tokens_of_the_checkpoints_own_tokenizer(
    name: str, family: Callable[[str], families.Made], llama_output: Callable[[str], families.Said]
) -> None:
    tokenizer, found = (
        transformers.AutoTokenizer.from_pretrained(family(name).path),
        llama_output(name),
    )
    text = families.FAMILIES[name].text
    assert found.tokens == tokenizer(text)["input_ids"]
    assert found.plain_tokens == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def minilm_directory(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM with its pooling config, which is in a subdirectory."""
    directory = tmp_path_factory.mktemp("minilm") / "all-MiniLM-L6-v2"
    shutil.copytree(minilm, directory)
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


@pytest.mark.real
def test_minilm_makes_the_embeddings_in_llama_cpp_that_it_makes_in_transformers(
    minilm_directory: Path, converted: Callable[..., Path]
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_directory)
    tokens = tokenizer(WHOLE)["input_ids"]
    model = transformers.AutoModel.from_pretrained(minilm_directory)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).last_hidden_state[0].numpy()
    made = converted(minilm_directory, "minilm.gguf")
    found, of_llama = ask(made, ("embeddings", tokens), ("tokenize", WHOLE), pooling=NO_POOLING)
    assert of_llama == tokens
    assert cosines(found, expected).min() > 0.9999
    # The file defines the pooling of the embeddings.
    (pooled,) = ask(made, ("embeddings", tokens))
    assert pooled.shape == (384,)
    assert cosines(pooled, expected.mean(0)) > 0.9999


# A quantized GGUF is the same, whether a plain GGUF was written first or not.


RECIPE = ("--quant", "Q4_K_M")


@pytest.mark.parametrize("name", usual(["llama", "gpt2"], ["llama", "mixtral", "gemma3", "gpt2"]))
def test_one_step_makes_the_bytes_that_two_make(
    name: str,
    family: Callable[[str], families.Made],
    gguf: Callable[..., Path],
    converted: Callable[..., Path],
) -> None:
    one = converted(family(name).bf16, f"{name}-one-step.gguf", *RECIPE)
    two = converted(gguf(name, "bf16"), f"{name}-two-steps.gguf", *RECIPE)
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size < gguf(name, "bf16").stat().st_size / 2


def test_one_step_makes_the_bytes_that_two_make_of_a_model_that_was_trained(
    tiny_llama: Path, converted: Callable[..., Path]
) -> None:
    one = converted(tiny_llama, "tiny-one-step.gguf", *RECIPE)
    plain = converted(tiny_llama, "tiny-bf16.gguf")
    two = converted(plain, "tiny-two-steps.gguf", *RECIPE)
    assert one.read_bytes() == two.read_bytes()


# Lists of end tokens stop generation in llama.cpp, and are the same after conversion back.


COUNT = 12


def edited(source: Path, into: Path, drop: tuple[str, ...] = (), **files: dict[str, Any]) -> Path:
    """Copy a model directory, and change entries of JSON files.

    Files whose names begin with a text in `drop` are not copied.
    """
    into.mkdir()
    for path in source.iterdir():
        if not path.name.startswith(drop or "\0"):
            os.link(path, into / path.name)
    for name, changes in files.items():
        path = into / f"{name}.json"
        content = json.loads(path.read_text()) | changes
        path.unlink()
        path.write_text(json.dumps(content))
    return into


def read(directory: Path, name: str) -> dict[str, Any]:
    content = json.loads((directory / f"{name}.json").read_text())
    return {key: value for key, value in content.items() if key.endswith("_token_id")}


@pytest.fixture
def crossed_both_ways(
    weightctl: Callable[..., Completed], tmp_path: Path
) -> Callable[[Path], tuple[Path, Path]]:
    def convert(source: Path) -> tuple[Path, Path]:
        gguf, back = tmp_path / "model.gguf", tmp_path / "back"
        for arguments in ((source, gguf), (gguf, back)):
            done = weightctl("convert", *arguments)
            assert done.returncode == 0, done.stderr
        return gguf, back

    return convert


@pytest.mark.parametrize("name", usual(["llama"], ["llama", "qwen3", "gemma3", "phi3"]))
def test_generation_ends_where_a_list_says(
    name: str,
    family: Callable[[str], families.Made],
    crossed_both_ways: Callable[[Path], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    made = family(name)
    # Three tokens that are not end tokens for another reason; the model generates the second first.
    ends = [made.follows[20], made.follows[1], made.follows[7]]
    source = edited(
        made.path, tmp_path / "source",
        config={"eos_token_id": ends[0]}, generation_config={"eos_token_id": ends},
    )  # fmt: skip
    gguf, back = crossed_both_ways(source)
    (stops,) = ask(gguf, ("ends",), only_vocabulary=True)
    assert {*ends} <= {*stops}
    first = next(place for place, token in enumerate(made.follows) if token in ends)
    found = generate(gguf, made.prompt, COUNT, tmp_path)
    assert (found.count, found.reason) == (first + 1, "stop")
    for directory in (source, back):
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        every = model.generate(
            torch.tensor([made.prompt]), do_sample=False, max_new_tokens=COUNT, pad_token_id=0
        )
        assert every[0, len(made.prompt) :].tolist() == made.follows[: first + 1]
    for document in ("config", "generation_config"):
        assert read(back, document) == read(source, document)


def test_more_ends_than_gguf_has_keys_for_are_refused_before_anything_is_written(
    family: Callable[[str], families.Made], weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    source = edited(
        family("llama").path, tmp_path / "source",
        generation_config={"eos_token_id": list(range(300, 308))},
    )  # fmt: skip
    done = weightctl("convert", source, tmp_path / "model.gguf")
    assert done.returncode == 2
    assert "llama.cpp would not stop at these tokens" in done.stderr
    assert not (tmp_path / "model.gguf").exists()


@each("value", ["</s>", 1.5, True, {"id": 1}, [1, "a"], [[1]]])
def test_an_end_that_is_not_an_id_is_refused(
    value: object,
    family: Callable[[str], families.Made],
    weightctl: Callable[..., Completed],
    tmp_path: Path,
) -> None:
    source = edited(
        family("llama").path, tmp_path / "source", generation_config={"eos_token_id": value}
    )
    done = weightctl("convert", source, tmp_path / "model.gguf", "--dry-run")
    assert done.returncode == 2
    assert "generation_config.json: `eos_token_id` is" in done.stderr


def test_a_directory_without_a_tokenizer_keeps_its_ids(
    family: Callable[[str], families.Made],
    crossed_both_ways: Callable[[Path], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    ids = {"bos_token_id": 7, "eos_token_id": [611, 305, 306], "pad_token_id": None}
    source = edited(
        family("llama").path, tmp_path / "source", ("tokenizer", "special", "chat"),
        config=ids, generation_config=ids | {"eos_token_id": [305, 611]},
    )  # fmt: skip
    gguf, back = crossed_both_ways(source)
    assert ask(gguf, ("logits", [3, 4, 5]))[0].shape[0] == 3
    for load in (transformers.AutoConfig, transformers.GenerationConfig):
        before, after = (load.from_pretrained(path) for path in (source, back))
        assert {key: getattr(after, key) for key in ids} == {
            key: getattr(before, key) for key in ids
        }


def test_a_gguf_without_a_tokenizer_has_no_ids_of_another_model(
    family: Callable[[str], families.Made],
    crossed_both_ways: Callable[[Path], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    source = edited(
        family("llama").path, tmp_path / "source",
        ("tokenizer", "special", "chat", "generation"), config=none,
    )  # fmt: skip
    _, back = crossed_both_ways(source)
    after = transformers.AutoConfig.from_pretrained(back)
    assert {key: getattr(after, key) for key in none} == none
    assert not (back / "generation_config.json").exists()


# The notes of `convert` on tokenizers that llama.cpp does not follow completely.


def model_with(tokenizer: Tokenizer, directory: Path) -> Path:
    size = tokenizer.get_vocab_size()
    llama(vocab_size=size).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def pieces() -> Tokenizer:
    return family_tokenizers.sentence_pieces("<unk>", "<s>", "</s>", first="<s>")


def test_convert_names_the_tokens_whose_flags_llama_cpp_does_not_heed(
    pieces: Tokenizer, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    pieces.add_special_tokens([AddedToken("<turn>", rstrip=True)])
    done = weightctl("convert", model_with(pieces, tmp_path / "model"), tmp_path / "model.gguf")
    assert done.returncode == 0, done.stderr
    assert "white space after `<turn>` (`rstrip`)" in " ".join(done.stderr.split())


def test_convert_refuses_a_normalizer_that_llama_cpp_would_leave_out(
    pieces: Tokenizer, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    pieces.normalizer = normalizers.Sequence([normalizers.NFKC(), pieces.normalizer])
    model = model_with(pieces, tmp_path / "model")
    done = weightctl("convert", model, tmp_path / "model.gguf")
    assert done.returncode == 2
    assert '{"type": "NFKC"}' in " ".join(done.stderr.split())
    assert not (tmp_path / "model.gguf").exists()


# Valid but unusual configs: llama.cpp computes the same as transformers, or they are refused.


CONTEXT = 64
SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "gemma2": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16, "num_hidden_layers": 7},
    "phi3": {"sliding_window": None},
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 32, "beta_fast": 8.0, "beta_slow": 2.0,
}  # fmt: skip


def head_dim(name: str, size: int) -> dict[str, Any]:
    is_gemma = name.startswith("gemma")
    return {"head_dim": size} | ({"query_pre_attn_scalar": size} if is_gemma else {})


def made(directory: Path, name: str, changes: dict[str, Any]) -> tuple[list[int], Any]:
    """Save a model without a tokenizer; return tokens and their log-probabilities."""
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.for_model(
        name, **(SIZES | head_dim(name, 16) | TYPES[name] | changes)
    )
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    families.draw(model)
    model.save_pretrained(directory)
    tokens = torch.randint(0, 97, (CONTEXT // 2,)).tolist()
    return tokens, families.log_probabilities(model, tokens)


def agrees(gguf: Path, tokens: list[int], expected: Any, **options: Any) -> bool:
    (found,) = ask(gguf, ("logits", tokens), context=CONTEXT, **options)
    return bool(np.abs(log_softmax(found) - expected)[expected > np.log(1e-3)].max() < 5e-2)


@pytest.mark.parametrize("size", usual([32], [8, 32]))
@pytest.mark.parametrize("name", usual(["llama", "mixtral", "qwen2", "gemma3_text"], TYPES))
def test_heads_that_are_not_a_share_of_the_hidden_size(
    name: str, size: int, weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    tokens, expected = made(tmp_path / "source", name, head_dim(name, size))
    done = weightctl("convert", tmp_path / "source", tmp_path / "model.gguf")
    if name in {"qwen2", "phi3"}:
        assert done.returncode == 2
        assert f"llama.cpp does not load this {name}: `head_dim` is {size}" in done.stderr
        assert not (tmp_path / "model.gguf").exists()
    else:
        assert done.returncode == 0, done.stderr
        assert agrees(tmp_path / "model.gguf", tokens, expected)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
        ("phi3", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("gemma3_text", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
        ("qwen3_moe", {"num_key_value_heads": 4, "num_experts_per_tok": 1}),
    ],
)
def test_heads_biases_and_ties(
    name: str, changes: dict[str, Any], weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    tokens, expected = made(tmp_path / "source", name, changes)
    done = weightctl("convert", tmp_path / "source", tmp_path / "model.gguf")
    assert done.returncode == 0, done.stderr
    assert agrees(tmp_path / "model.gguf", tokens, expected)


@pytest.mark.parametrize("name", usual(["qwen2"], ["llama", "qwen2", "gemma2"]))
def test_the_flags_that_the_note_on_yarn_gives_make_llama_cpp_exact(
    name: str, weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    tokens, expected = made(tmp_path / "source", name, {"rope_parameters": YARN})
    done = weightctl("convert", tmp_path / "source", tmp_path / "model.gguf")
    assert done.returncode == 0, done.stderr
    assert "`--yarn-beta-fast 8 --yarn-beta-slow 2`" in " ".join(done.stderr.split())
    gguf = tmp_path / "model.gguf"
    assert not agrees(gguf, tokens, expected)
    assert agrees(gguf, tokens, expected, yarn_betas=(8.0, 2.0))


# Quantizing loses as much precision as llama.cpp's own quantization of the same weights.


RECIPES = ["Q8_0", "Q4_K_M"]


def quantized_by_ggml(ours: Path, plain: Path, out: Path) -> None:
    """Write a copy of a GGUF with blocks that ggml makes from the values of a plain one."""
    out.write_bytes(ours.read_bytes())
    weights = open_weights(plain)
    copied = gguf.GGUFReader(out, "r+")
    blocks = 0
    for tensor in copied.tensors:
        kind = tensor.tensor_type.name
        if kind not in {"F32", "F16", "BF16"}:
            blocks += 1
            rows = weights[tensor.name].data().to_numpy()
            made = ggml_quantize(kind, rows.reshape(-1, rows.shape[-1]), None)
            tensor.data.reshape(-1)[:] = made.reshape(-1)
    assert blocks > 10
    copied.data.flush()


def logits_of(model: Path, windows: list[list[int]]) -> NDArray[np.float32]:
    return np.concatenate(ask(model, *(("logits", window) for window in windows)))


def windows_of(model: Path, text: str, count: int, length: int) -> list[list[int]]:
    (tokens,) = ask(model, ("tokenize", text))
    return [tokens[place * length : (place + 1) * length] for place in range(count)]


@pytest.mark.long
@pytest.mark.parametrize("kind", RECIPES)
def test_quantizing_tiny_llama_costs_what_it_costs_in_llama_cpp(
    kind: str, tiny_llama: Path, converted: Callable[..., Path], tmp_path: Path
) -> None:
    plain = converted(tiny_llama, "tiny-f32.gguf", "--dtype", "f32")
    ours = converted(tiny_llama, f"tiny-{kind}.gguf", "--quant", kind)
    windows = windows_of(plain, (tiny_llama / "held-out.txt").read_text()[:6000], 4, 256)
    compare(plain, ours, windows, tmp_path)


@pytest.mark.long
@pytest.mark.real
@pytest.mark.parametrize("kind", RECIPES)
def test_quantizing_smollm2_costs_what_it_costs_in_llama_cpp(
    kind: str, tiny_llama: Path, smollm2: Path, converted: Callable[..., Path], tmp_path: Path
) -> None:
    # The model in Hugging Face's form; that weightctl wrote it does not affect the comparison.
    model = converted(smollm2, "smollm2-hf", "--dtype", "f32")
    plain = converted(model, "smollm2-again.gguf")
    ours = converted(model, f"smollm2-{kind}.gguf", "--quant", kind)
    windows = windows_of(plain, (tiny_llama / "held-out.txt").read_text()[:1500], 2, 100)
    compare(plain, ours, windows, tmp_path)


def compare(plain: Path, ours: Path, windows: list[list[int]], scratch: Path) -> None:
    other = scratch / "ggml.gguf"
    quantized_by_ggml(ours, plain, other)
    expected = logits_of(plain, windows)
    cost = mean_divergence(expected, logits_of(ours, windows))
    assert 0 < cost <= 1.05 * mean_divergence(expected, logits_of(other, windows))
