"""Models in memory are written as what `save_pretrained` writes is converted."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import family_tokenizers
import small_models
import weightctl
from each import each
from family_cases import CASES, make_checkpoint, model_class
from family_stand_ins import STAND_INS
from lazy import peft, torch, transformers
from weightctl.errors import ArgumentTypeError, ConversionError, StateDictError
from weightctl.formats.open.in_memory import open_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# PEFT uses a name that transformers will remove, and informs about what it saves.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning:peft")

ADAPTERS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "down_proj"]},
    "scaled": {
        "target_modules": "all-linear", "use_rslora": True, "rank_pattern": {"q_proj": 4},
        "alpha_pattern": {"v_proj": 3}, "modules_to_save": ["norm", "lm_head"],
    },
    "dora": {"target_modules": ["q_proj"], "use_dora": True},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


def make_llama(*, tied: bool = False) -> Any:
    return small_models.make("llama", tie_word_embeddings=tied).to(torch.bfloat16)


MODELS: dict[str, Callable[[], Any]] = {
    "llama": make_llama,
    "tied": lambda: make_llama(tied=True),
    "mixtral": lambda: small_models.make("mixtral").to(
        torch.bfloat16
    ),  # in files, the experts have other names, and each its own tensors
    "gpt2": lambda: small_models.make("gpt2").half(),
}


def adapt(model: Any, **settings: Any) -> Any:
    """Return a model of PEFT with a random adapter."""
    return draw(peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, **settings)))


def draw(adapted: Any) -> Any:
    """Give the adapter of a model random values."""
    random = torch.Generator().manual_seed(31)
    for name, tensor in adapted.named_parameters():
        if "lora_A" in name or "lora_B" in name or "lora_emb" in name or "to_save" in name:
            tensor.data = 0.1 * torch.randn(tensor.shape, generator=random).to(tensor.dtype)
    return adapted


def read(path: Path) -> dict[str, bytes]:
    """Return the content of a file, or of the files of a directory."""
    if path.is_dir():
        return {each.name: each.read_bytes() for each in path.iterdir()}
    return {"": path.read_bytes()}


def write_both(
    model: Any, folder: Path, write: Callable[..., Any], out: str, **options: Any
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return what is written of a model in memory, and of its directory of the same name."""
    tokenizer = family_tokenizers.gpt2() if "tokenizer" in options else None
    options |= {} if tokenizer is None else {"tokenizer": tokenizer}
    saved = folder / "saved" / out.partition(".")[0]
    model.save_pretrained(saved)
    if tokenizer is not None:
        tokenizer.save_pretrained(saved)
    (folder / "other").mkdir()
    write(model, folder / out, **options)
    options.pop("tokenizer", None)
    weightctl.convert(saved, folder / "other" / out, **options)
    return read(folder / out), read(folder / "other" / out)


@each("quant", [None, "Q4_K_M", "Q8_0"])
@each("name", MODELS)
def test_a_gguf_is_that_of_the_saved_model(name: str, quant: str | None, tmp_path: Path) -> None:
    model = MODELS[name]()
    made, expected = write_both(model, tmp_path, weightctl.to_gguf, "small.gguf", quant=quant)
    assert made == expected


@each("quant", [None, "W8A16"])
@each("name", MODELS)
def test_a_directory_is_that_of_the_saved_model(
    name: str, quant: str | None, tmp_path: Path
) -> None:
    model = MODELS[name]()
    made, expected = write_both(model, tmp_path, weightctl.to_directory, "small", quant=quant)
    assert made == expected


@pytest.mark.long
@each("name", [name for name, case in CASES.items() if case.kind not in STAND_INS])
def test_models_of_all_families_are_written_as_their_directories(
    name: str, crossed: Path, tmp_path: Path
) -> None:
    path = make_checkpoint(name, crossed).path
    model = model_class(CASES[name]).from_pretrained(path, dtype=torch.float32)
    made, expected = write_both(model, tmp_path, weightctl.to_gguf, "small.gguf", quant="Q8_0")
    assert made == expected


def test_the_tokenizer_is_that_of_transformers_or_of_a_directory(tmp_path: Path) -> None:
    model = small_models.make("llama", vocab_size=len(family_tokenizers.gpt2()))
    made, expected = write_both(model, tmp_path, weightctl.to_gguf, "a.gguf", tokenizer=True)
    assert made == expected
    weightctl.to_gguf(model, tmp_path / "a.gguf", tokenizer=tmp_path / "saved" / "a", force=True)
    assert read(tmp_path / "a.gguf") == expected
    with pytest.raises(ConversionError, match="not a directory with the files of a tokenizer"):
        weightctl.to_gguf(model, tmp_path / "b.gguf", tokenizer=tmp_path)
    with pytest.raises(ArgumentTypeError, match="int is not a tokenizer"):
        weightctl.to_gguf(model, tmp_path / "b.gguf", tokenizer=1)


@each("kind", ADAPTERS)
def test_adapters_are_merged_as_their_files_are(kind: str, tmp_path: Path) -> None:
    make_llama().save_pretrained(tmp_path / "base" / "small")
    model = adapt(make_llama(), **ADAPTERS[kind])
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weightctl.to_gguf(model, tmp_path / "small.gguf", quant="Q8_0")
    weightctl.merge(
        tmp_path / "base" / "small", tmp_path / "adapter", tmp_path / "of_files.gguf", quant="Q8_0"
    )
    assert read(tmp_path / "small.gguf") == read(tmp_path / "of_files.gguf")
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_adapters_of_renamed_modules_and_of_experts_are_merged(tmp_path: Path) -> None:
    adapted = adapt(
        small_models.make("mixtral"),
        target_modules=["q_proj"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"],
    )
    weightctl.to_gguf(adapted, tmp_path / "small.gguf")
    adapted.merge_and_unload().save_pretrained(tmp_path / "small")
    weightctl.convert(tmp_path / "small", tmp_path / "merged.gguf")
    compared = weightctl.diff(tmp_path / "small.gguf", tmp_path / "merged.gguf", values=True)
    assert max(each.change.relative_rmse for each in compared.differences if each.change) < 1e-6


def test_merged_and_disabled_adapters_are_not_merged_again(tmp_path: Path) -> None:
    model = adapt(make_llama(), **ADAPTERS["plain"])
    make_llama().save_pretrained(tmp_path / "base" / "small")
    with model.disable_adapter():
        weightctl.to_gguf(model, tmp_path / "small.gguf")
    weightctl.convert(tmp_path / "base" / "small", tmp_path / "base.gguf")
    assert read(tmp_path / "small.gguf") == read(tmp_path / "base.gguf")
    model.merge_adapter()
    with model.disable_adapter(), pytest.raises(ConversionError, match="merged, and disabled"):
        weightctl.to_gguf(model, tmp_path / "small.gguf", force=True)
    weightctl.to_gguf(model, tmp_path / "small.gguf", force=True)
    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged" / "small")
    weightctl.convert(tmp_path / "merged" / "small", tmp_path / "merged.gguf")
    assert read(tmp_path / "small.gguf") == read(tmp_path / "merged.gguf")
    weightctl.to_gguf(merged, tmp_path / "small.gguf", force=True)
    assert read(tmp_path / "small.gguf") == read(tmp_path / "merged.gguf")


def test_the_model_inside_of_a_model_of_peft_is_written_with_its_adapters(tmp_path: Path) -> None:
    model = adapt(make_llama(), **ADAPTERS["scaled"])
    weightctl.to_gguf(model, tmp_path / "small.gguf")
    expected = read(tmp_path / "small.gguf")
    weightctl.to_gguf(model.get_base_model(), tmp_path / "small.gguf", force=True)
    assert read(tmp_path / "small.gguf") == expected
    integrated = make_llama()
    integrated.add_adapter(peft.LoraConfig(r=8, lora_alpha=16, **ADAPTERS["plain"]))
    weightctl.to_gguf(draw(integrated), tmp_path / "small.gguf", force=True)
    integrated.disable_adapters()
    weightctl.to_gguf(integrated, tmp_path / "without.gguf")
    changed = [
        [each.change for each in weightctl.diff(path, make_llama(), values=True).differences]
        for path in (tmp_path / "small.gguf", tmp_path / "without.gguf")
    ]
    assert list(map(len, changed)) == [4, 0]


def test_an_adapter_whose_initialization_changed_the_model_is_merged(tmp_path: Path) -> None:
    before = make_llama().float()
    before.save_pretrained(tmp_path / "small")
    model = peft.get_peft_model(
        before, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa")
    )
    weightctl.to_gguf(model, tmp_path / "small.gguf")
    weightctl.convert(tmp_path / "small", tmp_path / "before.gguf")
    compared = weightctl.diff(tmp_path / "small.gguf", tmp_path / "before.gguf", values=True)
    assert all(each.change.relative_rmse < 1e-5 for each in compared.differences if each.change)


def quantized() -> Any:
    model = make_llama()
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    return model


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "meta": (lambda: make_llama().to("meta"), "21 tensors are not in memory"),
    "quantized": (quantized, r"the model is quantized \(bitsandbytes\)"),
    "other kind": (
        lambda: peft.get_peft_model(
            make_llama(), peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[])
        ),
        "the adapter `default` has the type IA3",
    ),
    "prompts": (
        lambda: peft.get_peft_model(
            make_llama(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        ),
        "the adapter `default` has the type PROMPT_TUNING",
    ),
    "tokens": (
        lambda: adapt(make_llama(), target_modules=["q_proj"], trainable_token_indices=[1]),
        "trainable_token_indices",
    ),
}


@each("name", REFUSED)
def test_models_whose_values_cannot_be_read_are_refused(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ConversionError, match=message) as error:
        weightctl.to_gguf(make(), tmp_path / "small.gguf")
    assert error.value.hint
    assert not [*tmp_path.iterdir()]


def test_tensors_of_other_classes_are_refused(tmp_path: Path) -> None:
    model = make_llama()
    packed = type("Params4bit", (torch.nn.Parameter,), {})
    model.lm_head.weight = packed(model.lm_head.weight.data)
    with pytest.raises(ConversionError, match=r"1 tensor .*`lm_head.weight` \(Params4bit\)"):
        weightctl.to_gguf(model, tmp_path / "small.gguf")


def test_only_models_with_a_config_are_written(tmp_path: Path) -> None:
    for given in (torch.nn.Linear(2, 2), {}, "model"):
        with pytest.raises(ArgumentTypeError, match="is not a model of transformers"):
            weightctl.to_gguf(given, tmp_path / "small.gguf")


def test_wrapped_models_are_written_as_what_they_wrap(tmp_path: Path) -> None:
    class DistributedDataParallel(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

    model = make_llama()
    compiled = torch.compile(model, backend="eager")
    for name, given in {"a": model, "b": DistributedDataParallel(model), "c": compiled}.items():
        (tmp_path / name).mkdir()
        weightctl.to_gguf(given, tmp_path / name / "small.gguf")
        assert read(tmp_path / name / "small.gguf") == read(tmp_path / "a" / "small.gguf")


def test_the_temporary_directory_is_removed_with_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = open_model(make_llama(), "small")
    assert [*tmp_path.iterdir()]
    del opened
    gc.collect()
    assert not [*tmp_path.iterdir()]


def test_functions_take_a_model_in_memory(tmp_path: Path) -> None:
    model = make_llama()
    weightctl.to_gguf(model, tmp_path / "small.gguf", dtype="bf16")
    assert not weightctl.verify(tmp_path / "small.gguf", model, tokens=[1, 2, 3]).problems
    assert not weightctl.verify(model, tokens=[1, 2, 3]).problems
    compared = weightctl.diff(model, tmp_path / "small.gguf", values=True)
    assert compared.paired == "by the tensor names of llama in Hugging Face and in GGUF"
    assert not [each for each in compared.differences if each.change and each.change.relative_rmse]
    assert {each.name for each in weightctl.stat(model).tensors} == {*model.state_dict()}
    weightctl.convert(model, tmp_path / "small.safetensors")
    halves = weightctl.shard(model, tmp_path / "halves", tp=2)
    assert [*halves.outcome.parts] == ["rank-0/model.safetensors", "rank-1/model.safetensors"]
    with pytest.raises(ConversionError, match="adapters of PEFT that are not merged: `default`"):
        weightctl.stat(adapt(model, **ADAPTERS["plain"]))


def test_functions_take_modules_without_a_config() -> None:
    linear = weightctl.nn.Linear(4, 8)
    with pytest.raises(StateDictError):
        weightctl.stat(linear)
    linear.load_state_dict({"weight": np.arange(32, dtype=np.float32).reshape(8, 4)})
    for module in (linear, torch.nn.Linear(4, 8, bias=False)):
        assert [each.name for each in weightctl.stat(module).tensors] == ["weight"]
        assert not weightctl.verify(module, module).problems


MEASURED = """
import resource, sys, torch, transformers, weightctl
torch.set_default_dtype(torch.bfloat16)
config = transformers.LlamaConfig(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=8,
    num_key_value_heads=2, vocab_size=64000, tie_word_embeddings=False,
)
model = transformers.LlamaForCausalLM(config)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
weightctl.to_gguf(model, sys.argv[1], quant="Q4_K_M")
print(sum(each.nbytes for each in model.parameters()), peak() - before)
"""


@pytest.mark.long
def test_a_model_is_written_in_little_memory_beside_it(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "out.gguf")],
        check=True, capture_output=True, text=True, env={**os.environ},
    )  # fmt: skip
    nbytes, more = map(int, run.stdout.split()[-2:])
    assert nbytes > 600e6
    assert more < 100e6
