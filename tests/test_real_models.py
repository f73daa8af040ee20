"""Conversion of real checkpoints, judged by the readers and runtimes that people use."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map
from safetensors import safe_open

from lazy import torch
from llama_cpp import generate
from weightctl import DType, open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.real
Run = "Callable[..., Completed]"
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def converted(weightctl: Run, smollm2: Path, scratch: Path) -> Callable[..., Path]:
    """Convert SmolLM2; each result is made once."""

    def convert(name: str, *arguments: str) -> Path:
        out = scratch / name
        if not out.exists():
            done = weightctl("convert", smollm2, out, *arguments)
            assert done.returncode == 0, done.stderr
        return out

    return convert


@pytest.fixture(scope="module")
def numbers(smollm2: Path) -> dict[str, Any]:
    """SmolLM2's tensors as the gguf package decodes them."""
    return {
        tensor.name: dequantize(tensor.data, tensor.tensor_type)
        for tensor in GGUFReader(smollm2).tensors
    }


@pytest.mark.long
def test_smollm2_to_safetensors_bf16_has_the_values_of_the_reference(
    converted: Callable[..., Path], numbers: dict[str, Any]
) -> None:
    out = converted("bf16.safetensors", "--dtype", "bf16")
    with safe_open(out, "pt") as written:
        assert set(written.keys()) == set(numbers)
        for name, values in numbers.items():
            found = written.get_tensor(name).float().numpy()
            assert np.array_equal(found, values.astype(ml_dtypes.bfloat16).astype(np.float32)), name


@pytest.mark.long
def test_smollm2_to_q8_0_is_read_by_gguf_and_close_to_the_source(
    converted: Callable[..., Path], numbers: dict[str, Any]
) -> None:
    out = converted("q8_0.gguf", "--quant", "Q8_0", "--allow-requantize")
    for tensor in GGUFReader(out).tensors:
        expected = numbers[tensor.name]
        error = np.linalg.norm(dequantize(tensor.data, tensor.tensor_type) - expected)
        assert error < 0.008 * np.linalg.norm(expected), tensor.name
        matrix = len(tensor.shape) > 1
        assert tensor.tensor_type.name == ("Q8_0" if matrix else "F32")


@pytest.mark.long
def test_smollm2_as_q8_0_generates_in_llama_cpp_what_the_source_generates(
    converted: Callable[..., Path], smollm2: Path, scratch: Path
) -> None:
    out = converted("q8_0.gguf", "--quant", "Q8_0", "--allow-requantize")
    before = generate(smollm2, PROMPT, 5, scratch)
    after = generate(out, PROMPT, 5, scratch)
    assert "Paris" in before.text
    assert after.text == before.text
    for one, other in zip(before.log_probabilities, after.log_probabilities, strict=True):
        assert math.isclose(one, other, abs_tol=0.1)


@pytest.mark.long
def test_smollm2_as_q4_k_falls_back_as_llama_cpp_does_and_runs_there(
    converted: Callable[..., Path], scratch: Path
) -> None:
    out = converted("q4_k.gguf", "--quant", "Q4_K", "--allow-requantize")
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(out).tensors}
    assert types["blk.0.ffn_down.weight"] == "Q4_K"  # rows of 1536
    assert types["blk.0.attn_q.weight"] == "Q5_0"  # rows of 576
    assert list(types.values()).count("Q5_0") == 181
    assert "Paris" in generate(out, PROMPT, 4, scratch).text


@pytest.mark.long
def test_smollm2_copied_to_gguf_is_the_same_to_llama_cpp_to_the_last_bit(
    converted: Callable[..., Path], smollm2: Path, scratch: Path
) -> None:
    out = converted("copy.gguf")
    assert generate(out, PROMPT, 8, scratch) == generate(smollm2, PROMPT, 8, scratch)
    before, after = open_weights(smollm2), open_weights(out)
    assert dict(after.metadata) == dict(before.metadata)
    for name, node in before.items():
        assert node.data().view() == after[name].data().view()


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [("--dtype", "f32"), ("--dtype", "bf16"), ("--quant", "Q8_0")], ids=str
)
def test_bf16_safetensors_of_smollm2_become_a_gguf_that_llama_cpp_runs(
    converted: Callable[..., Path], weightctl: Run, scratch: Path, arguments: tuple[str, str]
) -> None:
    middle = converted("bf16.safetensors", "--dtype", "bf16")
    out = scratch / f"back-{arguments[1]}.gguf"
    done = weightctl("convert", middle, out, *arguments)
    assert done.returncode == 0, done.stderr
    assert "Paris" in generate(out, PROMPT, 4, scratch).text
    out.unlink()


def test_minilm_lists_as_a_person_expects(weightctl: Run, minilm: Path) -> None:
    done = weightctl("ls", minilm)
    assert done.returncode == 0, done.stderr
    assert "bert, safetensors" in done.stdout
    assert "104 tensors, 22.7 M parameters, 90.9 MB" in done.stdout
    assert "encoder.layer.[0-5]  x6" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K"])
def test_minilm_converts_to_a_quantized_gguf_that_gguf_reads(
    weightctl: Run, minilm: Path, scratch: Path, quant: str
) -> None:
    out = scratch / f"minilm-{quant}.gguf"
    done = weightctl("convert", minilm, out, "--quant", quant)
    assert done.returncode == 0, done.stderr
    weights = open_weights(minilm)
    tensors = {tensor.name: tensor for tensor in GGUFReader(out).tensors}
    called = get_tensor_name_map(MODEL_ARCH.BERT, 6)
    # llama.cpp implements pooling and positions itself.
    kept = [name for name, _ in weights.items() if not re.search("pooler|position_ids", name)]
    assert set(tensors) == {called.get_name(name, (".weight", ".bias")) for name in kept}
    query = tensors["blk.0.attn_q.weight"]
    assert query.tensor_type.name == ("Q5_0" if quant == "Q4_K" else "Q8_0")  # rows of 384
    expected = weights["encoder.layer.0.attention.self.query.weight"].data().to_numpy()
    error = dequantize(query.data, query.tensor_type) - expected
    assert np.sqrt(np.mean(error**2)) < 0.08 * np.sqrt(np.mean(expected**2))
    assert tensors["token_embd_norm.weight"].tensor_type.name == "F32"
    assert tensors["position_embd.weight"].tensor_type.name == "F32"


@pytest.mark.long
def test_minilm_converts_to_a_directory_that_transformers_loads(
    weightctl: Run, minilm: Path, scratch: Path
) -> None:
    from transformers import AutoModel, AutoTokenizer

    out = scratch / "minilm-f16"
    done = weightctl("convert", minilm, out, "--dtype", "f16")
    assert done.returncode == 0, done.stderr
    model = AutoModel.from_pretrained(out)
    expected = open_weights(minilm)["encoder.layer.3.output.dense.weight"].data()
    found = model.encoder.layer[3].output.dense.weight.detach().half().numpy()
    assert np.array_equal(found, expected.astype(DType.float16).to_numpy())
    assert AutoTokenizer.from_pretrained(out)("Hello")["input_ids"] == [101, 7592, 102]


def test_silero_lists_its_scalars_and_odd_shapes(weightctl: Run, silero: Path) -> None:
    done = weightctl("ls", silero, "--json")
    listed = {each["name"]: each["shape"] for each in json.loads(done.stdout)["tensors"]}
    with safe_open(silero, "np") as expected:
        assert listed == {
            name: expected.get_slice(name).get_shape()
            for name in expected.keys()  # noqa: SIM118
        }


@pytest.mark.long
def test_vocabulary_files_list_with_their_metadata(vocabularies: list[Path]) -> None:
    assert len(vocabularies) == 19
    versions = [int.from_bytes(path.read_bytes()[4:8], "little") for path in vocabularies]
    assert versions.count(2) == 1
    for path in vocabularies:
        metadata = open_weights(path).metadata
        tokens = metadata["tokenizer.ggml.tokens"]
        assert tokens.type == "array[string]"
        assert len(tokens.content) > 30_000
        assert isinstance(tokens.content[-1], str)
        assert metadata["general.architecture"].type == "string"


@pytest.mark.long
def test_metadata_of_a_vocabulary_file_is_what_gguf_reads(vocabularies: list[Path]) -> None:
    (path,) = [each for each in vocabularies if each.name == "ggml-vocab-gpt-2.gguf"]
    reader, metadata = GGUFReader(path), open_weights(path).metadata
    expected = {key: field.contents() for key, field in reader.fields.items()}
    for key, value in metadata.items():
        content = value.content
        assert (list(content) if value.type.startswith("array") else content) == expected[key]


def test_a_version_2_file_converts_to_version_3_with_equal_metadata(
    weightctl: Run, vocabularies: list[Path], scratch: Path
) -> None:
    (old,) = [path for path in vocabularies if path.read_bytes()[4] == 2]
    out = scratch / "v3.gguf"
    done = weightctl("convert", old, out)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes()[4] == 3
    assert dict(open_weights(out).metadata) == dict(open_weights(old).metadata)


@pytest.mark.long
def test_smollm2_to_a_pytorch_bin_and_back_is_what_it_is_without_the_way(
    converted: Callable[..., Path], weightctl: Run, scratch: Path
) -> None:
    direct = converted("direct.gguf", "--dtype", "f16")
    by_way = converted("way.bin", "--dtype", "f16")
    loaded = torch.load(by_way, weights_only=True, mmap=True)
    expected = {tensor.name: tensor for tensor in GGUFReader(direct).tensors}
    # Vectors are float32 in outputs for llama.cpp, and float16 as requested in others.
    assert loaded.keys() == expected.keys()
    for name, tensor in loaded.items():
        values = expected[name].data.astype(np.float16).reshape(tensor.shape)
        assert np.array_equal(tensor.numpy(), values), name
    done = weightctl("convert", by_way, scratch / "back.gguf", "--dtype", "f16", "--force")
    assert done.returncode == 0, done.stderr
    assert (scratch / "back.gguf").read_bytes() == direct.read_bytes()
