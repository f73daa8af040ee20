"""llama.cpp's own vocabularies and test vectors, compared with the tokenizers that are written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer as Reference

from lazy import transformers
from real_files import fetch
from weightctl import open_weights
from weightctl.translate.tokenizer import from_directory, from_metadata, to_documents

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.translate.tokenizer import Tokenizer

pytestmark = [pytest.mark.real, pytest.mark.long]
NAMES = (
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe",
    "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
TEXT = (
    "Héllo  wörld! e\u0301 ñ 你好、世界 日本語 한국어 🦙🚀😶\u200d🌫️\n\n\tdef f(x):\n        "
    "return x**2  # it's 1234567 3.14\r\n<|im_start|>user\nHi<|im_end|> 'RE we'Ve   end  \n \n"
)
# In a separate process, because llama.cpp writes to the terminal, and aborts on invalid files.
_ASK = """
import json, sys, urllib.request, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 64, 1, False
server = xllamacpp.Server(params)
def ask(path, body):
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "text/json"}
    )
    return json.load(urllib.request.urlopen(request))
with open(sys.argv[2]) as question, open(sys.argv[3], "w") as answer:
    text = json.load(question)
    tokens = ask("/tokenize", {"content": text, "add_special": True})["tokens"]
    again = ask("/detokenize", {"tokens": tokens})["content"]
    json.dump([tokens, again], answer)
"""


def read(path: Path) -> Tokenizer:
    tokenizer = from_metadata(open_weights(str(path)).header.metadata, str(path))
    assert tokenizer is not None
    return tokenizer


def written(tokenizer: Tokenizer, model_type: str, into: Path) -> Path:
    for name, content in to_documents(tokenizer, model_type, {}).items():
        (into / name).write_bytes(content)
    (into / "config.json").write_text(json.dumps({"model_type": model_type}))
    return into


def vectors(path: Path) -> tuple[list[str], list[list[int]]]:
    texts = (path.parent / f"{path.name}.inp").read_bytes().decode()
    ids = (path.parent / f"{path.name}.out").read_text().split("\n")
    asked = texts.split("\n__ggml_vocab_test__\n")
    found = [[int(each) for each in line.split()] for line in ids]
    count = min(len(asked), len(found))  # both files end with an empty entry
    assert count > 40
    return asked[:count], found[:count]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_made_of_a_vocabulary_cuts_texts_as_llama_cpp_does(name: str) -> None:
    path = fetch("vocabularies") / f"ggml-vocab-{name}.gguf"
    documents = to_documents(read(path), "llama", {})
    reference = Reference.from_str(documents["tokenizer.json"].decode())
    texts, ids = vectors(path)
    for text, expected in zip(texts, ids, strict=True):
        assert reference.encode(text, add_special_tokens=False).ids == expected, text


@pytest.mark.parametrize("name", ["bert-bge", "gpt-2", "llama-bpe"])
def test_a_vocabulary_comes_back_from_hugging_face_as_it_was(name: str, tmp_path: Path) -> None:
    tokenizer = read(fetch("vocabularies") / f"ggml-vocab-{name}.gguf")
    written(tokenizer, "llama", tmp_path)
    back = from_directory(str(tmp_path), len(tokenizer.tokens), "llama")
    assert back is not None
    assert (back.tokens, back.types) == (tokenizer.tokens, tokenizer.types)
    assert (back.model, back.pre) == (tokenizer.model, tokenizer.pre)
    assert back.merges == tokenizer.merges
    assert back.special.items() >= tokenizer.special.items()


def test_transformers_and_llama_cpp_agree_on_a_text_both_ways(
    smollm2: Path, tmp_path: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        written(read(smollm2), "llama", tmp_path)
    )
    question, answer = tmp_path / "question", tmp_path / "answer"
    question.write_text(json.dumps(TEXT))
    done = subprocess.run(
        [sys.executable, "-c", _ASK, smollm2, question, answer],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "no_proxy": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ids, text = json.loads(answer.read_text())
    assert tokenizer.encode(TEXT) == ids
    assert tokenizer.decode(ids) == text == TEXT
    assert tokenizer.chat_template.startswith("{%")


def test_qwens_own_class_cuts_text_as_tokenizer_json_says(tmp_path: Path) -> None:
    path = fetch("vocabularies") / "ggml-vocab-qwen2.gguf"
    written(read(path), "qwen2", tmp_path)
    ours = Reference.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode(TEXT) == ours.encode(TEXT).ids
    assert len(tokenizer) == 151646  # the padding of the embedding is removed
