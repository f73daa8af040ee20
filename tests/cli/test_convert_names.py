"""The naming convention of an output, and what depends on it: config, tokenizer, row orders."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

GGUF_NAMES = {
    "token_embd.weight", "output.weight", "output_norm.weight",
    *(
        f"blk.{layer}.{part}.weight"
        for layer in range(3)
        for part in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
                     "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    ),
}  # fmt: skip
DOCUMENTS = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def gguf(weightctl: Run, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shipped model as a GGUF file that llama.cpp loads."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    assert weightctl("convert", tiny_llama, path).returncode == 0
    return path


def names(path: Path) -> set[str]:
    return set(open_weights(path).header.tensors)


def read_report(done: Completed) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


# Into GGUF


def test_a_gguf_gets_its_own_names_config_and_tokenizer(gguf: Path) -> None:
    weights = open_weights(gguf)
    assert set(weights.header.tensors) == GGUF_NAMES
    says = {key: value.content for key, value in weights.metadata.items()}
    assert says["general.architecture"] == "llama"
    assert says["llama.attention.head_count_kv"] == 2
    assert says["tokenizer.ggml.model"] == "gpt2"
    assert len(says["tokenizer.ggml.tokens"]) == 512
    norm = weights["blk.0.attn_norm.weight"].info
    assert (norm.encoding.name, norm.shape) == ("F32", (256,))


def test_query_and_key_rows_are_in_the_order_of_llama_cpp(tiny_llama: Path, gguf: Path) -> None:
    before, after = (open_weights(path) for path in (tiny_llama, gguf))
    for theirs, ours, heads in (("q", "attn_q", 8), ("k", "attn_k", 2)):
        rows = before[f"model.layers.1.self_attn.{theirs}_proj.weight"].data().to_numpy()
        pairs = rows.reshape(heads, 2, 16, 256).swapaxes(1, 2).reshape(rows.shape)
        assert after[f"blk.1.{ours}.weight"].data().to_numpy().tobytes() == pairs.tobytes()


def test_keep_leaves_names_in_a_gguf(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", tiny_llama, out, "--names", "keep")
    assert names(out) == names(tiny_llama)
    assert "llama.cpp does not load the output" in done.stderr
    assert "Hugging Face -> GGUF" not in done.stdout


def test_a_checkpoint_without_a_config_keeps_its_names(weightctl: Run, tmp_path: Path) -> None:
    source = stored(tmp_path / "in.safetensors", a=np.ones((2, 2), np.float32))
    assert weightctl("convert", source, tmp_path / "out.gguf").returncode == 0
    assert names(tmp_path / "out.gguf") == {"a"}


def test_gguf_names_can_be_asked_for_in_safetensors(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    assert weightctl("convert", tiny_llama, out, "--names", "gguf").returncode == 0
    weights = open_weights(out)
    assert set(weights.header.tensors) == GGUF_NAMES
    assert weights.metadata["llama.block_count"] == ("u32", 3)


# Into a model's directory


def test_a_directory_gets_hugging_faces_names_and_all_that_stands_beside(
    weightctl: Run, tiny_llama: Path, gguf: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", gguf, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "llama, GGUF -> Hugging Face" in done.stdout
    made = set(os.listdir(tmp_path / "out"))
    assert made >= DOCUMENTS | {"model.safetensors"}
    assert names(tmp_path / "out") == names(tiny_llama)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_key_value_heads"] == 2
    assert "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))


def test_there_and_back_is_the_same_bytes(
    weightctl: Run, tiny_llama: Path, gguf: Path, tmp_path: Path
) -> None:
    assert weightctl("convert", gguf, tmp_path / "back").returncode == 0
    done = weightctl("diff", tiny_llama, tmp_path / "back", "--hash")
    assert done.stdout.splitlines()[-1] == "30 tensors, no difference"


def test_a_directory_in_parts_has_all_of_it_too(
    weightctl: Run, tiny_llama: Path, gguf: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert weightctl("convert", gguf, out, "--max-shard-size", "1MB").returncode == 0
    assert DOCUMENTS | {"model.safetensors.index.json"} <= set(os.listdir(out))
    done = weightctl("diff", tiny_llama, out, "--hash")
    assert done.stdout.splitlines()[-1] == "30 tensors, no difference"


def test_keep_leaves_names_in_a_directory(weightctl: Run, gguf: Path, tmp_path: Path) -> None:
    done = weightctl("convert", gguf, tmp_path / "out", "--names", "keep")
    assert os.listdir(tmp_path / "out") == ["model.safetensors"]
    assert names(tmp_path / "out") == GGUF_NAMES
    assert "GGUF's names and metadata are kept without a config.json" in done.stderr


def test_a_file_has_no_place_for_a_config_and_keeps_its_names(
    weightctl: Run, gguf: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    assert weightctl("convert", gguf, out).returncode == 0
    assert names(out) == GGUF_NAMES


def test_a_file_gets_hugging_faces_names_where_they_are_asked_for(
    weightctl: Run, tiny_llama: Path, gguf: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    done = weightctl("convert", gguf, out, "--names", "hf")
    assert names(out) == names(tiny_llama)
    assert os.listdir(tmp_path) == ["out.safetensors"]
    assert "config.json" in done.stderr
    assert (
        "can only be written to a directory: without them transformers does not load the output"
    ) in done.stderr


def test_a_directory_that_is_hugging_faces_already_is_copied(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    for asked in ("auto", "hf", "keep"):
        done = weightctl("convert", tiny_llama, tmp_path / asked, "--names", asked)
        assert done.returncode == 0
        assert sorted(os.listdir(tmp_path / asked)) == sorted(os.listdir(tiny_llama))
        config = (tmp_path / asked / "config.json").read_bytes()
        assert config == (tiny_llama / "config.json").read_bytes()


def test_a_gguf_that_is_one_already_keeps_its_metadata(
    weightctl: Run, gguf: Path, tmp_path: Path
) -> None:
    for asked in ("auto", "gguf", "keep"):
        out = tmp_path / f"{asked}.gguf"
        assert weightctl("convert", gguf, out, "--names", asked).returncode == 0
        assert out.read_bytes() == gguf.read_bytes()


# What is told


def test_a_plan_shows_the_steps_on_the_way(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--dry-run")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert lines["attn_q.weight"].endswith("rows of 8 heads reordered for interleaved RoPE")
    assert lines["attn_k.weight"].endswith("rows of 2 heads reordered for interleaved RoPE")
    assert "heads" not in lines["attn_v.weight"]
    assert "\nllama, Hugging Face -> GGUF\n" in done.stdout
    assert os.listdir(tmp_path) == []


def test_a_script_learns_of_what_each_tensor_is_made(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    asked = "convert", tiny_llama, tmp_path / "out.gguf", "-n", "--json"
    found = read_report(weightctl(*asked))
    assert found["translation"] == "llama, Hugging Face -> GGUF"
    tensors = {each["name"]: each for each in found["tensors"]}
    query, norm = tensors["blk.2.attn_q.weight"], tensors["output_norm.weight"]
    assert query["sources"] == ["model.layers.2.self_attn.q_proj.weight"]
    assert query["steps"] == ["rows of 8 heads reordered for interleaved RoPE"]
    assert norm["sources"] == ["model.norm.weight"]
    assert (norm["from"], norm["to"]) == ("BF16", "F32")
    kept = read_report(weightctl(*asked, "--names", "keep"))
    assert kept["translation"] is None
    assert all(each["sources"] == [each["name"]] for each in kept["tensors"])
    assert all(each["steps"] == [] for each in kept["tensors"])


def test_a_script_learns_of_the_documents_to_the_byte(
    weightctl: Run, gguf: Path, tmp_path: Path
) -> None:
    planned = read_report(weightctl("convert", gguf, tmp_path / "out", "--dry-run", "--json"))
    assert os.listdir(tmp_path) == []
    found = {each["name"]: each["bytes"] for each in planned["documents"]}
    assert found.keys() >= DOCUMENTS
    done = read_report(weightctl("convert", gguf, tmp_path / "out", "--json"))
    assert {each["name"] for each in done["documents"]} == found.keys()
    assert found["tokenizer.json"] == (tmp_path / "out" / "tokenizer.json").stat().st_size


def test_recipes_know_roles_whatever_the_names(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    def types(*asked: str) -> dict[str, str]:
        done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--quant", "Q4_K_M", "-n",
                         "--json", *asked)  # fmt: skip
        matrices = (each for each in read_report(done)["tensors"] if len(each["shape"]) > 1)
        return {each["sources"][0]: each["to"] for each in matrices}

    kept = types("--names", "keep")
    assert kept == types()
    assert kept["lm_head.weight"] == "Q6_K"
    assert kept["model.layers.2.mlp.down_proj.weight"] == "Q6_K"
    assert kept["model.layers.0.mlp.down_proj.weight"] == "Q4_K"


# What is chosen


def test_what_is_included_and_excluded_is_called_as_in_the_output(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    asked = "--include", "blk.[0-1].*", "--exclude", "*_norm*"
    assert weightctl("convert", tiny_llama, out, *asked).returncode == 0
    assert len(names(out)) == 14
    done = weightctl("convert", tiny_llama, out, "--include", "model.layers.*", "--force")
    assert done.returncode == 2
    assert "no tensor matches `model.layers.*`" in done.stderr
    assert (
        "hint: patterns apply to the names in the output, after --rename and --names" in done.stderr
    )
    done = weightctl("convert", tiny_llama, out, "--tensor-type", "q_proj=Q8_0", "--force")
    assert done.returncode == 2
    assert "no tensor's name matches `q_proj`" in done.stderr
    assert "hint: patterns apply to the names in the output" in done.stderr


# Renaming


def renamed_in_safetensors(weightctl: Run, model: Path, out: Path, *asked: str) -> Completed:
    return weightctl("convert", model, out, "--names", "keep", *asked)


def test_rules_without_a_file_are_followed_in_their_order(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out, rules = tmp_path / "out.safetensors", tmp_path / "a=b.toml"
    rules.write_text("[rename]\n'^lm_head' = 'file'\n'^lm' = 'late'\n'^model\\.norm' = 'norm'")
    asked = (
        *("--rename", r"^model\.layers\.(\d+)\.=blk.\1."),
        *("--rename", str(rules)),
        *("--rename", "^model\\.="),
    )
    done = renamed_in_safetensors(weightctl, tiny_llama, out, *asked)
    assert done.returncode == 2
    assert "no tensor's name matches `^lm`, or earlier rules" in done.stderr
    rules.write_text("[rename]\n'^lm_head' = 'file'\n'^model\\.norm' = 'norm'")
    done = renamed_in_safetensors(weightctl, tiny_llama, out, *asked)
    assert done.returncode == 0, done.stderr
    found = names(out)
    assert {"file.weight", "norm.weight", "embed_tokens.weight"} <= found
    assert "blk.2.self_attn.q_proj.weight" in found


def test_an_output_is_never_the_file_of_rules(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rules.safetensors"
    out.write_text("[rename]\n'^model' = 'm'")
    done = renamed_in_safetensors(weightctl, tiny_llama, out, "--rename", str(out), "--force")
    assert done.returncode == 2
    assert "is the file of naming rules" in done.stderr


def test_patterns_that_match_the_names_before_renaming_are_explained(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    asked = "--rename", "^model=m", "--include", "model.*"
    done = renamed_in_safetensors(weightctl, tiny_llama, tmp_path / "a.safetensors", *asked)
    assert done.returncode == 2
    assert "no tensor matches `model.*`" in done.stderr
    assert "patterns apply to the names in the output, after --rename" in done.stderr


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("=x", "`--rename =x` has no pattern before `=`"),
        ("(=x", "`(` is not a valid regular expression"),
        (r"head=\1", "invalid group reference 1"),
        ("none.toml", "a rule without a file is --rename '"),
    ],
)
def test_a_rule_that_is_none_is_refused(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, rule: str, says: str
) -> None:
    done = renamed_in_safetensors(
        weightctl, tiny_llama, tmp_path / "a.safetensors", "--rename", rule
    )
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


# Metadata


def test_metadata_comes_from_a_file_and_goes_by_patterns(
    weightctl: Run, gguf: Path, tmp_path: Path
) -> None:
    template, out = tmp_path / "template.jinja", tmp_path / "out.gguf"
    template.write_text("{{ messages }}\n")
    asked = "--set", f"tokenizer.chat_template=@{template}", "--unset", "tokenizer.*"
    done = weightctl("convert", gguf, out, *asked)
    assert done.returncode == 0, done.stderr
    found = {key: value.content for key, value in open_weights(out).metadata.items()}
    assert found["tokenizer.chat_template"] == "{{ messages }}\n"
    assert [key for key in found if key.startswith("tokenizer.")] == ["tokenizer.chat_template"]
    done = weightctl("convert", gguf, out, "--unset", "nothing.*")
    assert done.returncode == 2
    assert "there is no metadata key `nothing.*` to remove" in done.stderr


def test_an_output_is_never_the_file_of_a_value(weightctl: Run, gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "name.gguf"
    out.write_text("mine")
    done = weightctl("convert", gguf, out, "--set", f"general.name=@{out}", "--force")
    assert done.returncode == 2
    assert "is the value of `general.name`" in done.stderr
    assert out.read_text() == "mine"
