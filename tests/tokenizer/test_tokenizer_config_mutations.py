"""A changed key of tokenizer_config.json changes llama.cpp's tokens as those of transformers.

Each key but the class is changed in turn. Where the ids of transformers change, those that
llama.cpp gives for the converted tokenizer change alike, or it is refused, or a note is added.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import family_tokenizers
from lazy import transformers
from real_files import fetch
from vocabulary_files import ids_of
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import from_directory
from weightctl.translate.tokenizer.record import TokenType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from weightctl.translate.tokenizer import Tokenizer

    Mutation = tuple[str, str, dict[str, Any]]

TEXTS = (
    "The Quick brown fox's 12 345 times", "Two  spaces ", "Café: 语言\n\nx", "don't stop .", "",
)  # fmt: skip


class Kind(NamedTuple):
    """A tokenizer: its maker, the family that has it, and its class in transformers."""

    maker: str
    model_type: str
    tokenizer_class: str


GENERIC = "PreTrainedTokenizerFast"
KINDS = (
    Kind("llama3", "llama", GENERIC), Kind("qwen", "qwen2", GENERIC),
    Kind("qwen", "qwen2", "Qwen2Tokenizer"), Kind("gpt2", "gpt2", "GPT2Tokenizer"),
    Kind("gpt2", "gpt2", GENERIC), Kind("llama2", "llama", "LlamaTokenizer"),
    Kind("llama2", "llama", GENERIC), Kind("phi3", "phi3", "LlamaTokenizer"),
    Kind("gemma", "gemma3", "GemmaTokenizer"), Kind("gemma", "gemma3", GENERIC),
    Kind("bert", "bert", "BertTokenizer"), Kind("bert", "bert", GENERIC),
    Kind("roberta", "roberta", "RobertaTokenizer"),
    Kind("xlm_roberta", "xlm-roberta", "XLMRobertaTokenizer"),
    Kind("camembert", "camembert", "CamembertTokenizer"),
    Kind("modernbert", "modernbert", GENERIC), Kind("minilm", "bert", "BertTokenizer"),
)  # fmt: skip
# Keys of all classes, which a config need not have.
SWITCHES = (
    "add_bos_token", "add_eos_token", "add_prefix_space", "add_dummy_prefix_space",
    "do_lower_case", "do_basic_tokenize", "strip_accents", "tokenize_chinese_chars", "legacy",
    "clean_up_tokenization_spaces", "split_special_tokens", "keep_accents", "remove_space",
    "trim_offsets", "use_default_system_prompt", "spaces_between_special_tokens", "from_slow",
    "fix_mistral_regex",
)  # fmt: skip
# Models that generate no text.
ENCODERS = {"bert", "roberta", "xlm-roberta", "camembert", "modernbert"}
CONFIG, MAP, ABSENT = "tokenizer_config.json", "special_tokens_map.json", "absent"
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
NAMES = ("extra", "additional")
FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")


def list_mutations(kind: Kind, config: dict[str, Any], tokens: list[str]) -> Iterator[Mutation]:
    """Yield files in each of which one key has another value."""
    plain = next(token for token in tokens if token.isalpha() and token.isascii())
    # In transformers 5, no space follows a special token in this class alone.
    others = ["<|new|>", *([] if kind.tokenizer_class == "LlamaTokenizer" else [plain])]
    changes: list[tuple[str, Any]] = [
        *((key, value) for key in SWITCHES for value in (True, False)),
        *((f"{role}_token", value) for role in ROLES for value in (*others, None, ABSENT)),
        *((f"{name}_special_tokens", [each]) for each in others for name in NAMES),
        ("padding_side", "left"), ("truncation_side", "left"), ("model_max_length", 3),
    ]  # fmt: skip
    for key, value in changes:
        changed = {**config, key: value}
        yield (
            CONFIG,
            f"{key}={value}",
            {each: changed[each] for each in changed if changed[each] != ABSENT},
        )
        if key.endswith("_token") and isinstance(value, str):
            yield MAP, f"{MAP} {key}={value}", {key: value}
    decoder = config.get("added_tokens_decoder") or {}
    numbers = {each: str(tokens.index(each) if each in tokens else len(tokens)) for each in others}
    entries = {
        **{(token, flag): {**decoder[token], flag: not decoder[token].get(flag)}
           for token in decoder for flag in FLAGS},
        **{(number, each): dict.fromkeys(FLAGS, False) | {"content": each}
           for each, number in numbers.items()},
    }  # fmt: skip
    for (token, what), entry in entries.items():
        changed = {**decoder, token: entry}
        yield CONFIG, f"added {token} {what}", {**config, "added_tokens_decoder": changed}


def write(kind: Kind, into: Path) -> dict[str, Any]:
    """Write a tokenizer, and return its tokenizer_config.json."""
    if kind.maker == "minilm":
        real = next(fetch("minilm").rglob("tokenizer.json")).parent
        into.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            if (real / name).exists():
                shutil.copy(real / name, into)
    else:
        getattr(family_tokenizers, kind.maker)().save_pretrained(into)
    (into / "config.json").write_text(json.dumps({"model_type": kind.model_type}))
    config = json.loads((into / "tokenizer_config.json").read_text())
    return {**config, "tokenizer_class": kind.tokenizer_class}


def run_theirs(path: Path) -> tuple[list[list[int]], list[str]] | None:
    """Return the ids of transformers, and their texts; None if it refuses the files."""
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(path)
        ids = [loaded(text)["input_ids"] for text in TEXTS]
        return ids, [loaded.decode(each) for each in ids]
    except Exception:  # noqa: BLE001  # a config that makes no tokenizer
        return None


def read(path: Path, kind: Kind) -> Tokenizer:
    found = from_directory(str(path), 0, kind.model_type)
    assert found is not None
    return found


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.maker}-{kind.tokenizer_class}")
def test_a_changed_key_changes_the_ids_alike_or_is_refused_or_noted(
    kind: Kind, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    config = write(kind, made)
    (made / CONFIG).write_text(json.dumps(config))
    expected, found = run_theirs(made), read(made, kind)
    assert expected is not None
    assert expected[0] == ids_of(found, TEXTS, tmp_path / "v.gguf", special=True) or found.notes
    tried, offenders = 0, list[str]()
    for file, name, changed in list_mutations(kind, config, [*found.tokens]):
        folder = shutil.copytree(made, tmp_path / "changed", dirs_exist_ok=True)
        (folder / file).write_text(json.dumps(changed))
        theirs = run_theirs(folder)
        try:
            now = read(folder, kind)
        except TokenizerError:
            continue
        finally:
            shutil.rmtree(folder)
        if theirs is None or {*now.notes} - {*found.notes}:
            continue
        tried += 1
        ours = ids_of(now, TEXTS, tmp_path / "v.gguf", special=True)
        if ours != theirs[0] and (theirs[0] != expected[0] or not found.notes):
            at = next(
                n for n, two in enumerate(zip(ours, theirs[0], strict=True)) if two[0] != two[1]
            )
            offenders.append(f"{name}: {TEXTS[at]!r} {ours[at]}, in transformers {theirs[0][at]}")
        elif kind.model_type not in ENCODERS and theirs[0] == expected[0] and theirs != expected:
            offenders.append(f"{name}: the text of tokens changes")
    assert tried
    assert not offenders, "\n".join(offenders)


def test_special_tokens_of_the_configs_are_found_in_a_text(tmp_path: Path) -> None:
    kind = Kind("gpt2", "gpt2", GENERIC)
    config = write(kind, tmp_path / "gpt2")
    (tmp_path / "gpt2" / MAP).write_text('{"eos_token": "he"}')
    found = read(tmp_path / "gpt2", kind)
    # transformers reads the map if tokenizer_config.json lists no added tokens.
    assert found.tokens[found.special["eos"]] == "he"
    assert found.types[found.special["eos"]] == TokenType.CONTROL
    listed = {**config, "added_tokens_decoder": {}}
    (tmp_path / "gpt2" / CONFIG).write_text(json.dumps(listed))
    found = read(tmp_path / "gpt2", kind)
    assert found.tokens[found.special["eos"]] == config["eos_token"]
    kind = Kind("bert", "bert", "BertTokenizer")
    config = write(kind, tmp_path / "bert")
    (tmp_path / "bert" / CONFIG).write_text(json.dumps({**config, "bos_token": "[MASK]"}))
    found = read(tmp_path / "bert", kind)
    # llama.cpp adds this one before each text.
    assert found.tokens[found.special["bos"]] == "[CLS]"
