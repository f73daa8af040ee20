"""Mistakes in what goes with the tensors: each changes one entry of a GGUF file or a directory."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import fault_files
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEMPLATE = "{% for message in messages %}\n{{ message['content'] }}\n{% endfor %}"
PADDING, USERS = 2, 511
Metadata = dict[str, MetadataValue]
Documents = dict[str, Any]


class Fault(NamedTuple):
    """A mistake, the key or file that has it, and what must be said of it."""

    change: Callable[[Any], object]
    where: str
    words: tuple[str, ...]


def give_more(directory: Path, out: Path) -> Path:
    """Return a copy of a model with what real ones have: chat template, padding, an added token."""
    shutil.copytree(directory, out)
    with edited(out, "tokenizer.json") as tokenizer:
        vocabulary = tokenizer["model"]["vocab"]
        texts = {token: text for text, token in vocabulary.items()}
        entry = dict(tokenizer["added_tokens"][0])
        tokenizer["added_tokens"] += [
            entry | {"id": PADDING, "content": texts[PADDING]},
            entry | {"id": USERS, "content": texts[USERS], "special": False},
        ]
    with edited(out, "tokenizer_config.json") as config:
        config["pad_token"] = texts[PADDING]
    (out / "chat_template.jinja").write_text(TEMPLATE)
    return out


class edited:  # noqa: N801  # used as a function
    """Yield the content of a JSON file, to be changed and written back."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / name

    def __enter__(self) -> Any:
        self._content = json.loads(self._path.read_text())
        return self._content

    def __exit__(self, *_: object) -> None:
        self._path.write_text(json.dumps(self._content))


def in_gguf(source: Path, out: Path, change: Callable[[Metadata], object]) -> Path:
    """Write a GGUF file with other metadata."""
    files = fault_files.read(source)
    change(files.metadata)
    return files.write(out)


def in_directory(source: Path, out: Path, change: Callable[[Path], object]) -> Path:
    """Write a model's directory in which a file is changed."""
    shutil.copytree(source, out)
    change(out)
    return out


def _set(key: str, value: object) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        metadata[key] = MetadataValue(metadata[key].type, value)

    return change


def _drop(key: str) -> Callable[[Metadata], object]:
    return lambda metadata: metadata.pop(key)


def _list(key: str, change: Callable[[list[Any]], object]) -> Callable[[Metadata], None]:
    def apply(metadata: Metadata) -> None:
        content = [*metadata[key].content]
        change(content)
        metadata[key] = MetadataValue(metadata[key].type, content)

    return apply


def exchange(elements: Any, one: int = 305, other: int = 306) -> None:
    elements[one], elements[other] = elements[other], elements[one]


def _all_normal(types: list[int]) -> None:
    types[:] = [1] * len(types)


_GGML = "tokenizer.ggml."


def _lose_last(metadata: Metadata) -> None:
    for key in ("tokens", "token_type"):
        _list(f"{_GGML}{key}", list.pop)(metadata)


IN_GGUF = {
    "tokens exchanged": Fault(
        _list(f"{_GGML}tokens", exchange), f"{_GGML}tokens",
        ("2 tokens are swapped", "token 305 `", "token 306 `", "in the reference"),
    ),
    "token lost at the end": Fault(
        _lose_last, f"{_GGML}tokens", ("511 tokens here and 512", "missing", "511 `"),
    ),
    "types all normal": Fault(
        _list(f"{_GGML}token_type", _all_normal), f"{_GGML}token_type",
        ("every token is ordinary text", "0 `<s>`", "1 `</s>`"),
    ),
    "one control token normal": Fault(
        _list(f"{_GGML}token_type", lambda types: types.__setitem__(0, 1)), f"{_GGML}token_type",
        ("0 `<s>` is of type NORMAL here and CONTROL in the reference",),
    ),
    "added token normal": Fault(
        _list(f"{_GGML}token_type", lambda types: types.__setitem__(USERS, 1)),
        f"{_GGML}token_type", ("511 `", "is of type NORMAL here and USER_DEFINED in the reference"),
    ),
    "merges reordered": Fault(
        _list(f"{_GGML}merges", lambda merges: exchange(merges, 7, 8)), f"{_GGML}merges",
        ("another order", "merge 7 is `", "merge 8 is `"),
    ),
    "merge lost": Fault(
        _list(f"{_GGML}merges", list.pop), f"{_GGML}merges", ("253 merges here and 254",),
    ),
    "wrong eos": Fault(
        _set(f"{_GGML}eos_token_id", 7), f"{_GGML}eos_token_id",
        ("the eos token is 7 `", "1 `</s>` in the reference"),
    ),
    "eos dropped": Fault(
        _drop(f"{_GGML}eos_token_id"), f"{_GGML}eos_token_id",
        ("is missing", "llama.cpp uses token 11 `"),
    ),
    "eos outside the vocabulary": Fault(
        _set(f"{_GGML}eos_token_id", 512), f"{_GGML}eos_token_id", ("is 512", "512 tokens"),
    ),
    "wrong bos": Fault(
        _set(f"{_GGML}bos_token_id", 1), f"{_GGML}bos_token_id",
        ("the bos token is 1 `</s>` here and 0 `<s>` in the reference",),
    ),
    "wrong padding": Fault(
        _set(f"{_GGML}padding_token_id", 9), f"{_GGML}padding_token_id",
        ("the padding token is 9 `", "2 `!` in the reference"),
    ),
    "bos not added": Fault(
        _set(f"{_GGML}add_bos_token", False), f"{_GGML}add_bos_token",
        ("is false here and true in the reference",),
    ),
    "another pre-tokenizer": Fault(
        _set(f"{_GGML}pre", "qwen2"), f"{_GGML}pre",
        ("the pre-tokenizer is `qwen2` here and `gpt-2` in the reference",),
    ),
    "another kind of tokenizer": Fault(
        _set(f"{_GGML}model", "llama"), f"{_GGML}model", ("is `llama` here and `gpt2`",),
    ),
    "chat template changed": Fault(
        _set("tokenizer.chat_template", TEMPLATE.replace("content", "text")),
        "tokenizer.chat_template", ("from line 2 on", "['text']", "['content']"),
    ),
    "chat template dropped": Fault(
        _drop("tokenizer.chat_template"), "tokenizer.chat_template", ("missing",),
    ),
    "context halved": Fault(
        _set("llama.context_length", 256), "llama.context_length",
        ("`llama.context_length` is 256 here and 512 in the reference",),
    ),
    "rope base": Fault(
        _set("llama.rope.freq_base", 500000.0), "llama.rope.freq_base",
        ("is 500000 here and 10000 in the reference",),
    ),
    "rotations stretched": Fault(
        lambda metadata: metadata.update(
            {"llama.rope.scaling.type": MetadataValue("string", "linear"),
             "llama.rope.scaling.factor": MetadataValue("f32", 4.0)}
        ),
        "llama.rope.scaling.type", ("linear",),
    ),
    "norm epsilon": Fault(
        _set("llama.attention.layer_norm_rms_epsilon", 1e-6),
        "llama.attention.layer_norm_rms_epsilon", ("1e-06 here and 1e-05 in the reference",),
    ),
    "file type of another encoding": Fault(
        _set("general.file_type", 7), "general.file_type",
        ("is 7, Q8_0, but 100 % of the matrices' values are BF16",),
    ),
}  # fmt: skip


def _json(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        with edited(directory, name) as content:
            change(content)

    return apply


def _exchange_entries(tokenizer: Any) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    texts = {token: text for text, token in vocabulary.items()}
    vocabulary[texts[305]], vocabulary[texts[306]] = 306, 305


def _drop_added(tokenizer: Any) -> None:
    tokenizer["added_tokens"] = [each for each in tokenizer["added_tokens"] if each["id"] != USERS]


def _config(**values: Any) -> Callable[[Path], None]:
    return _json("config.json", lambda config: config.update(values))


def _ends(directory: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        with edited(directory, name) as content:
            content["eos_token_id"] = 7


def _no_ends(directory: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        with edited(directory, name) as content:
            del content["eos_token_id"]


def _fewer_heads(directory: Path) -> None:
    _config(num_attention_heads=4, num_key_value_heads=1, head_dim=64)(directory)


IN_DIRECTORY = {
    "two entries exchanged": Fault(
        _json("tokenizer.json", _exchange_entries), "tokenizer.json",
        ("2 tokens are swapped", "token 305 `", "token 306 `"),
    ),
    "merges reordered": Fault(
        _json("tokenizer.json", lambda document: exchange(document["model"]["merges"], 7, 8)),
        "tokenizer.json", ("another order", "merge 7 is `"),
    ),
    "added token dropped": Fault(
        _json("tokenizer.json", _drop_added), "tokenizer.json",
        ("511 `", "is of type NORMAL here and USER_DEFINED in the reference"),
    ),
    "special tokens not special": Fault(
        _json(
            "tokenizer.json",
            lambda document: [each.update(special=False) for each in document["added_tokens"]],
        ),
        "tokenizer.json",
        ("0 `<s>`", "1 `</s>`", "are of type USER_DEFINED here and CONTROL in the reference"),
    ),
    "wrong end of generation": Fault(
        _ends, "eos_token_id", ("generation ends with 7 `", "with 1 `</s>` in the reference"),
    ),
    "wrong eos of the tokenizer": Fault(
        _json("tokenizer_config.json", lambda config: config.update(eos_token="<s>")),
        "eos_token", ("the eos token is 0 `<s>` here and 1 `</s>` in the reference",),
    ),
    "eos outside the vocabulary": Fault(
        _config(eos_token_id=512), "eos_token_id", ("is 512 in config.json", "512 rows"),
    ),
    "wrong padding": Fault(
        _json("tokenizer_config.json", lambda config: config.update(pad_token="</s>")),
        "pad_token", ("the padding token is 1 `</s>`",),
    ),
    "chat template changed": Fault(
        lambda directory: (directory / "chat_template.jinja").write_text(TEMPLATE[1:]),
        "chat_template", ("from line 1 on",),
    ),
    "context halved": Fault(
        _config(max_position_embeddings=256), "max_position_embeddings",
        ("`max_position_embeddings` is 256 here and 512 in the reference",),
    ),
    "rope base": Fault(_config(rope_theta=500000.0), "rope_theta", ("is 500000 here and 10000",)),
    "norm epsilon": Fault(_config(rms_norm_eps=1e-6), "rms_norm_eps", ("is 1e-06 here and 1e-05",)),
    "head counts": Fault(
        _fewer_heads, "num_attention_heads", ("`num_attention_heads` is 4 here and 8",),
    ),
}  # fmt: skip
