"""Sound models for `weightctl check`, and a fault for each of its rules."""

from __future__ import annotations

import json
from shutil import copytree
from typing import TYPE_CHECKING, Any, NamedTuple

from build import F32, Gguf, Tensor, safetensors_of
from conftest import ROOT
from weightctl import convert, edit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["FAULTS", "INDEX", "change", "change_index", "make_models"]

INDEX = "model.safetensors.index.json"
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}\n"
_CARD = "---\nlicense: mit\nbase_model: org/base\n---\n# A model\n"


def make_models(folder: Path) -> None:
    """Write `model` in parts, `adapter`, `awq` and `model.gguf`, which violate no rule."""
    tiny = ROOT / "fixtures" / "tiny-llama"
    convert(tiny, folder / "model", max_shard_size="1MB")
    (folder / "model" / "held-out.txt").unlink(missing_ok=True)
    (folder / "model" / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}})
    )
    (folder / "model" / "chat_template.jinja").write_text(_TEMPLATE)
    (folder / "model" / "README.md").write_text(_CARD)
    copytree(ROOT / "fixtures" / "tiny-adapter", folder / "adapter")
    (folder / "adapter" / "README.md").write_text(_CARD)
    change(folder / "adapter" / "adapter_config.json", base_model_name_or_path="org/base")
    convert(tiny, folder / "awq", quant="AWQ")
    convert(tiny, folder / "model.gguf")


def change(path: Path, **entries: Any) -> None:
    """Change entries of a JSON file; `...` removes an entry."""
    document = json.loads(path.read_text()) | entries
    kept = {key: value for key, value in document.items() if value is not ...}
    path.write_text(json.dumps(kept, indent=2) + "\n")


def change_index(path: Path, **entries: Any) -> None:
    """Change entries of the index of a model; `...` removes an entry."""
    document = json.loads((path / INDEX).read_text())
    change(path / INDEX, weight_map={k: v for k, v in (document["weight_map"] | entries).items()
                                     if v is not ...})  # fmt: skip


def first_part(path: Path) -> Path:
    return min(path.glob("*.safetensors"))


def cut_file(path: Path) -> None:
    part = first_part(path) if path.is_dir() else path
    part.write_bytes(part.read_bytes()[:-100])


def set_total(path: Path) -> None:
    change(path / INDEX, metadata={"total_size": 17})


def forget_total(path: Path) -> None:
    change(path / INDEX, metadata={"total_size": 17.0})


def break_index(path: Path) -> None:
    (path / INDEX).write_text("{}")


def remove_part(path: Path) -> None:
    first_part(path).unlink()


def forget_entry(path: Path) -> None:
    change_index(path, **{"model.norm.weight": ...})


def add_entry(path: Path) -> None:
    change_index(path, other=first_part(path).name)


def swap_part(path: Path) -> None:
    parts = sorted(each.name for each in path.glob("*.safetensors"))
    weight_map = json.loads((path / INDEX).read_text())["weight_map"]
    now = weight_map["model.norm.weight"]
    change_index(path, **{"model.norm.weight": next(each for each in parts if each != now)})


def repeat_tensor(path: Path) -> None:
    for part in sorted(path.glob("*.safetensors"))[:2]:
        part.write_bytes(safetensors_of({"extra": ("F32", (2,), bytes(8))}))
    change_index(path, extra=part.name)


def long_name(path: Path) -> None:
    path.write_bytes(Gguf().file([Tensor("n" * 70, (32,), F32, bytes(128))], {}))


def drop_norm(path: Path) -> None:
    edit(path, drop=["output_norm.weight"])


def set_gguf_end(path: Path) -> None:
    edit(path, metadata={"tokenizer.ggml.eos_token_id": 9999})


def break_config(path: Path) -> None:
    (path / "config.json").write_text("[]")


def set_dtype(path: Path) -> None:
    change(path / "config.json", torch_dtype="float16")


def forget_quantization(path: Path) -> None:
    change(path / "config.json", quantization_config=...)


def keep_quantization_apart(path: Path) -> None:
    forget_quantization(path)
    (path / "quant_config.json").write_text(
        json.dumps({"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"})
    )


def drop_output(path: Path) -> None:
    part = next(
        each for each in sorted(path.glob("*.safetensors")) if "lm_head.weight" in names(each)
    )
    tensors = load_bf16(part)
    del tensors["lm_head.weight"]
    save_bf16(tensors, part)
    change_index(path, **{"lm_head.weight": ...})


def names(part: Path) -> list[str]:
    return [*load_bf16(part)]


def load_bf16(part: Path) -> dict[str, Any]:
    from safetensors.torch import load_file as load_torch

    return load_torch(part)


def save_bf16(tensors: dict[str, Any], part: Path) -> None:
    from safetensors.torch import save_file as save_torch

    save_torch(tensors, part, {"format": "pt"})


def tie_output(path: Path) -> None:
    change(path / "config.json", tie_word_embeddings=True)


def set_end(path: Path) -> None:
    change(path / "config.json", eos_token_id=9999)


def set_ends(path: Path) -> None:
    change(path / "generation_config.json", eos_token_id=[5000, 1])


def set_ordinary_end(path: Path) -> None:
    change(path / "config.json", eos_token_id=70)
    change(path / "generation_config.json", eos_token_id=...)


def swap_special(path: Path) -> None:
    change(path / "config.json", eos_token_id=0)
    change(path / "generation_config.json", eos_token_id=...)


def repeat_id(path: Path) -> None:
    document = json.loads((path / "tokenizer.json").read_text())
    document["model"]["vocab"]["a second text"] = 300
    (path / "tokenizer.json").write_text(json.dumps(document))


def name_unknown_token(path: Path) -> None:
    change(path / "tokenizer_config.json", pad_token="<unused>")


def name_other_token(path: Path) -> None:
    change(path / "special_tokens_map.json", eos_token={"content": "<s>", "lstrip": False})


def move_added_token(path: Path) -> None:
    change(path / "tokenizer_config.json", added_tokens_decoder={"7": {"content": "</s>"}})


def break_template(path: Path) -> None:
    (path / "chat_template.jinja").write_text("{% for message in messages %}\n{{ message }")


def break_stated_template(path: Path) -> None:
    (path / "chat_template.jinja").unlink()
    change(path / "tokenizer_config.json", chat_template="{% if %}")


def add_template(path: Path) -> None:
    change(path / "tokenizer_config.json", chat_template="another")


def break_card(path: Path) -> None:
    (path / "README.md").write_text("---\nlicense: [\n---\n")


def leave_license_unnamed(path: Path) -> None:
    (path / "README.md").write_text("---\nlicense: other\n---\n")


def name_other_base(path: Path) -> None:
    (path / "README.md").write_text("---\nbase_model: org/other\n---\n")


def set_rank(path: Path) -> None:
    change(path / "adapter_config.json", r=8)


def add_target(path: Path) -> None:
    change(path / "adapter_config.json", target_modules=["q_proj", "v_proj", "o_prj"])


def remove_target(path: Path) -> None:
    change(path / "adapter_config.json", target_modules=["q_proj"])


def forget_base(path: Path) -> None:
    change(path / "adapter_config.json", base_model_name_or_path=None)


class CheckFault(NamedTuple):
    """A fault of a rule, a part of the finding's text, the model, and whether it can be fixed."""

    rule: str
    make: Callable[[Path], None]
    text: str
    model: str = "model"
    has_fix: bool = False


FAULTS = (
    CheckFault("weights-readable", cut_file, "", "model.gguf"),
    CheckFault("weights-structure", long_name, "has 70 bytes", "model.gguf"),
    CheckFault("weights-names", drop_norm, "is missing", "model.gguf"),
    CheckFault("weights-metadata", set_gguf_end, "is 9999, and there are 512", "model.gguf"),
    CheckFault("index-readable", break_index, "weight_map"),
    CheckFault("index-absent-part", remove_part, "1 part is missing: `model-00001"),
    CheckFault(
        "index-missing-entry", forget_entry, "1 tensor of the parts is not listed", has_fix=True
    ),
    CheckFault(
        "index-extra-entry", add_entry, "1 listed tensor is in no part: `other`", has_fix=True
    ),
    CheckFault("index-wrong-part", swap_part, "1 tensor is not in the part", has_fix=True),
    CheckFault("index-repeated-tensor", repeat_tensor, "in several parts: `extra`"),
    CheckFault("index-total-size", set_total, "`total_size` is 17", has_fix=True),
    CheckFault("index-total-size", forget_total, "`total_size` is 17", has_fix=True),
    CheckFault("json-readable", break_config, "not a JSON object"),
    CheckFault("config-dtype", set_dtype, "is float16, and all values", has_fix=True),
    CheckFault("config-quantization", forget_quantization, "is missing, and", "awq"),
    CheckFault("config-quantization", keep_quantization_apart, "is missing", "awq", has_fix=True),
    CheckFault("config-tied-embeddings", drop_output, "is not stored", has_fix=True),
    CheckFault("config-tied-embeddings", tie_output, "is stored and differs"),
    CheckFault("token-id-range", set_end, "is 9999, and the model has 512", has_fix=True),
    CheckFault("token-id-range", set_ends, "is 5000", has_fix=True),
    CheckFault("token-id-other", set_ordinary_end, "is 70, and the tokenizer's", has_fix=True),
    CheckFault("token-id-other", swap_special, "is 0, and the tokenizer's"),
    CheckFault("tokenizer-repeated-id", repeat_id, "token 300 has several texts"),
    CheckFault("tokenizer-unknown-token", name_unknown_token, "is '<unused>'"),
    CheckFault("tokenizer-special-map", name_other_token, "is '<s>', and '</s>'", has_fix=True),
    CheckFault("tokenizer-added-token", move_added_token, "which is token 1"),
    CheckFault("template-syntax", break_template, "line 2 is not valid Jinja"),
    CheckFault("template-syntax", break_stated_template, "line 1 is not valid Jinja"),
    CheckFault("template-two", add_template, "differs from chat_template.jinja"),
    CheckFault("card-front-matter", break_card, "not valid YAML"),
    CheckFault("card-license", leave_license_unnamed, "no `license_name`"),
    CheckFault("card-base-model", name_other_base, "org/base", "adapter"),
    CheckFault("adapter-rank", set_rank, "is 8, and the matrices have the rank 4", "adapter", True),
    CheckFault("adapter-unmatched-module", add_target, "o_prj", "adapter"),
    CheckFault("adapter-untargeted-module", remove_target, "v_proj", "adapter"),
    CheckFault("adapter-base", forget_base, "is missing", "adapter"),
)  # fmt: skip
