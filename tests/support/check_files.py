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


def swap_part(path: Path) -> None:
    parts = sorted(each.name for each in path.glob("*.safetensors"))
    weight_map = json.loads((path / INDEX).read_text())["weight_map"]
    now = weight_map["model.norm.weight"]
    change_index(path, **{"model.norm.weight": next(each for each in parts if each != now)})


def repeat_tensor(path: Path) -> None:
    for part in sorted(path.glob("*.safetensors"))[:2]:
        part.write_bytes(safetensors_of({"extra": ("F32", (2,), bytes(8))}))
    change_index(path, extra=part.name)


def keep_quantization_apart(path: Path) -> None:
    change(path / "config.json", quantization_config=...)
    (path / "quant_config.json").write_text(
        json.dumps({"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"})
    )


def drop_output(path: Path) -> None:
    from safetensors.torch import load_file, save_file  # NumPy has no bfloat16

    for part in sorted(path.glob("*.safetensors")):
        tensors = load_file(part)
        if tensors.pop("lm_head.weight", None) is not None:
            save_file(tensors, part, {"format": "pt"})
    change_index(path, **{"lm_head.weight": ...})


def repeat_id(path: Path) -> None:
    document = json.loads((path / "tokenizer.json").read_text())
    document["model"]["vocab"]["a second text"] = 300
    (path / "tokenizer.json").write_text(json.dumps(document))


def break_stated_template(path: Path) -> None:
    (path / "chat_template.jinja").unlink()
    change(path / "tokenizer_config.json", chat_template="{% if %}")


def _json(name: str, **entries: Any) -> Callable[[Path], None]:
    """Return the fault of a model with other entries in a JSON file; `...` removes an entry."""
    return lambda path: change(path / name, **entries)


def _text(name: str, text: str) -> Callable[[Path], None]:
    """Return the fault of a model with another text in a file."""

    def write(path: Path) -> None:
        (path / name).write_text(text)

    return write


def _ends(token: int) -> Callable[[Path], None]:
    """Return the fault of a config with another end token, which generation does not state."""

    def write(path: Path) -> None:
        change(path / "config.json", eos_token_id=token)
        change(path / "generation_config.json", eos_token_id=...)

    return write


def _index(**entries: Any) -> Callable[[Path], None]:
    return lambda path: change_index(path, **entries)


_ADAPTER, _TOKENIZER, _CARD_FILE = "adapter_config.json", "tokenizer_config.json", "README.md"


class CheckFault(NamedTuple):
    """A fault of a rule, a part of the finding's text, the model, and whether it can be fixed."""

    rule: str
    make: Callable[[Path], None]
    text: str
    model: str = "model"
    has_fix: bool = False


FAULTS = (
    CheckFault("weights-readable", cut_file, "", "model.gguf"),
    CheckFault(
        "weights-structure",
        lambda path: path.write_bytes(Gguf().file([Tensor("n" * 70, (32,), F32, bytes(128))], {})),
        "has 70 bytes", "model.gguf",
    ),
    CheckFault("weights-names", lambda path: edit(path, drop=["output_norm.weight"]), "is missing",
               "model.gguf"),
    CheckFault("weights-metadata",
               lambda path: edit(path, metadata={"tokenizer.ggml.eos_token_id": 9999}),
               "is 9999, and there are 512", "model.gguf"),
    CheckFault("index-readable", _text(INDEX, "{}"), "weight_map"),
    CheckFault("index-absent-part", lambda path: first_part(path).unlink(),
               "1 part is missing: `model-00001"),
    CheckFault("index-missing-entry", _index(**{"model.norm.weight": ...}),
               "1 tensor of the parts is not listed", has_fix=True),
    CheckFault("index-extra-entry", lambda path: change_index(path, other=first_part(path).name),
               "1 listed tensor is in no part: `other`", has_fix=True),
    CheckFault("index-wrong-part", swap_part, "1 tensor is not in the part", has_fix=True),
    CheckFault("index-repeated-tensor", repeat_tensor, "in several parts: `extra`"),
    CheckFault("index-total-size", _json(INDEX, metadata={"total_size": 17}), "`total_size` is 17",
               has_fix=True),
    CheckFault("index-total-size", _json(INDEX, metadata={"total_size": 17.0}),
               "`total_size` is 17", has_fix=True),
    CheckFault("json-readable", _text("config.json", "[]"), "not a JSON object"),
    CheckFault("config-dtype", _json("config.json", torch_dtype="float16"),
               "is float16, and all values", has_fix=True),
    CheckFault("config-class", _json("config.json", architectures=["LlamaForRanking2"]),
               "`LlamaForRanking2` (`architectures`) is not a class of llama"),
    CheckFault("config-quantization", _json("config.json", quantization_config=...),
               "is missing, and", "awq"),
    CheckFault("config-quantization", keep_quantization_apart, "is missing", "awq", has_fix=True),
    CheckFault("config-tied-embeddings", drop_output, "is not stored", has_fix=True),
    CheckFault("config-tied-embeddings", _json("config.json", tie_word_embeddings=True),
               "is stored and differs"),
    CheckFault("token-id-range", _json("config.json", eos_token_id=9999),
               "is 9999, and the model has 512", has_fix=True),
    CheckFault("token-id-range", _json("generation_config.json", eos_token_id=[5000, 1]),
               "is 5000", has_fix=True),
    CheckFault("token-id-other", _ends(70), "is 70, and the tokenizer's", has_fix=True),
    CheckFault("token-id-other", _ends(0), "is 0, and the tokenizer's"),
    CheckFault("tokenizer-repeated-id", repeat_id, "token 300 has several texts"),
    CheckFault("tokenizer-unknown-token", _json(_TOKENIZER, pad_token="<unused>"), "is '<unused>'"),
    CheckFault("tokenizer-special-map",
               _json("special_tokens_map.json", eos_token={"content": "<s>", "lstrip": False}),
               "is '<s>', and '</s>'", has_fix=True),
    CheckFault("tokenizer-added-token",
               _json(_TOKENIZER, added_tokens_decoder={"7": {"content": "</s>"}}),
               "which is token 1"),
    CheckFault("template-syntax",
               _text("chat_template.jinja", "{% for message in messages %}\n{{ message }"),
               "line 2 is not valid Jinja"),
    CheckFault("template-syntax", break_stated_template, "line 1 is not valid Jinja"),
    CheckFault("template-two", _json(_TOKENIZER, chat_template="another"),
               "differs from chat_template.jinja"),
    CheckFault("code-harmful",
               _text("chat_template.jinja", "{{ messages.__class__.__mro__ }}"),
               "a chat template that reaches for __class__, __mro__"),
    CheckFault("code-other",
               _json("config.json", auto_map={"AutoModel": "modeling_net.Net"}),
               "modeling_net.Net, which auto_map names"),
    CheckFault("card-front-matter", _text(_CARD_FILE, "---\nlicense: [\n---\n"), "not valid YAML"),
    CheckFault("card-license", _text(_CARD_FILE, "---\nlicense: other\n---\n"),
               "no `license_name`"),
    CheckFault("card-base-model", _text(_CARD_FILE, "---\nbase_model: org/other\n---\n"),
               "org/base", "adapter"),
    CheckFault("adapter-rank", _json(_ADAPTER, r=8), "is 8, and the matrices have the rank 4",
               "adapter", True),
    CheckFault("adapter-scale", _json(_ADAPTER, lora_alpha=float("nan")),
               "is nan, but a finite number is expected", "adapter"),
    CheckFault("adapter-scale", _json(_ADAPTER, r=0), "is 0, but a rank is a positive integer",
               "adapter"),
    CheckFault("adapter-unmatched-module",
               _json(_ADAPTER, target_modules=["q_proj", "v_proj", "o_prj"]), "o_prj", "adapter"),
    CheckFault("adapter-untargeted-module", _json(_ADAPTER, target_modules=["q_proj"]), "v_proj",
               "adapter"),
    CheckFault("adapter-base", _json(_ADAPTER, base_model_name_or_path=None), "is missing",
               "adapter"),
)  # fmt: skip
