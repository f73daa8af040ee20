"""Small tokenizers of every kind that the families have, trained here and built as theirs are."""
# ruff: noqa: RUF001 - letters of other scripts are what is tested

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from lazy import transformers
from sentencepiece_files import charsmap

if TYPE_CHECKING:
    from collections.abc import Sequence

# Accents, CJK, emoji, code, runs of whitespace, digits, right-to-left, what no vocabulary has.
TEXT = """The naïve café owner's résumé — “déjà vu”, coûte que coûte; Ærøskøbing, Łódź, İstanbul.
北京的天气很好，我们去公园。 東京タワーはとても高いです。 한국어 문장도 있습니다.
Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. हिन्दी भाषा.
👋🏽 🎉🎉 👩‍👩‍👧 ❤️ ∑∫√≠ ½ ™ 𝔘𝔫𝔦
def f(x):\n    if x >= 10:\n\t\treturn x ** 2  # it's 100% "fine"\n\n\n      y = {'a': [1, 22, 333]}
  two   three     five          ten\tone\t\ttwo\r\n
I'm you're WE'VE HE'LL don't 12345.678 3,000,000 1e-05 http://a.b/c?d=e <tag/> e\u0301 \u00a0\u200b|
"""
# llama.cpp composes no letters, and takes apart no syllables as BERT's normalizer does.
COMPOSED = unicodedata.normalize("NFC", TEXT)
WHOLE = re.sub("[가-힣\u0900-\u097f]+", "", COMPOSED)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def without_marks(text: str) -> str:
    """Return a text without combining marks, such as vowels of Devanagari, and what they follow."""
    return re.sub("[\u0900-\u097f]+", "", "".join(
        each for each in text if not unicodedata.category(each).startswith("M")))  # fmt: skip


_HELD_OUT = Path(__file__).parents[2] / "fixtures" / "tiny-llama" / "held-out.txt"
_SIZE = 640


def _corpus() -> list[str]:
    return [*(TEXT * 3).splitlines(keepends=True), *_HELD_OUT.read_text()[:8000].splitlines()]


def _control(*texts: str, **options: bool) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False, **options) for text in texts]


def _begins_with(token: str, tokenizer: Tokenizer) -> Any:
    return processors.TemplateProcessing(
        single=f"{token} $A",
        pair=f"{token} $A {token}:1 $B:1",
        special_tokens=[(token, tokenizer.token_to_id(token))],
    )


def byte_level(
    rule: str | None, *controls: str, first: str | None = None, nfc: bool = False
) -> Tokenizer:
    """Return a byte-level BPE; `rule` cuts words, None where GPT-2's own does."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=rule == LLAMA3))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule is None)
    tokenizer.pre_tokenizer = (
        by_bytes
        if rule is None
        else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(rule), "isolated"), by_bytes])
    )
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE - len(controls),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens(_control(*controls))
    by_bytes_after = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = (
        processors.Sequence([by_bytes_after, _begins_with(first, tokenizer)])
        if first
        else by_bytes_after
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(controls: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return a vocabulary and merges as SentencePiece's become in tokenizer.json."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    size = _SIZE - len(controls) - 256
    trained.train_from_iterator(
        _corpus(), trainers.BpeTrainer(vocab_size=size, limit_alphabet=200, show_progress=False)
    )
    ranks = json.loads(trained.to_str())["model"]["vocab"]
    made = sorted((piece for piece in ranks if len(piece) > 1), key=ranks.__getitem__)
    letters = sorted((piece for piece in ranks if len(piece) == 1), key=ranks.__getitem__)
    pieces = [*controls, *(f"<0x{byte:02X}>" for byte in range(256)), *made, *letters]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    # Whatever two pieces make a third, as SentencePiece merges them: the likeliest first.
    merges = [
        (piece[:cut], piece[cut:])
        for piece in made
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    return vocabulary, merges


def sentence_pieces(*controls: str, first: str, prefix: bool = True) -> Tokenizer:
    """Return what transformers makes of a SentencePiece BPE that falls back to bytes."""
    vocabulary, merges = _pieces(controls)
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", "▁")
    text = decoders.Replace("▁", " ")
    steps = [text, decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(_control(*controls))
    tokenizer.post_processor = _begins_with(first, tokenizer)
    return tokenizer


def word_pieces() -> Tokenizer:
    """Return a WordPiece tokenizer as BERT's, for text in lower case."""
    controls = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=_SIZE, special_tokens=_control(*controls), show_progress=False
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in ("[CLS]", "[SEP]")],
    )
    return tokenizer


CHAT = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% endfor %}"
)


def llama3() -> transformers.PreTrainedTokenizerFast:
    made = byte_level(
        LLAMA3,
        *("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_0|>"),
        first="<|begin_of_text|>",
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>",
        chat_template=CHAT,
    )  # fmt: skip


def qwen() -> transformers.PreTrainedTokenizerFast:
    made = byte_level(QWEN2, "<|endoftext|>", "<|im_start|>", "<|im_end|>", nfc=True)
    made.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=CHAT,
    )  # fmt: skip


def gpt2() -> transformers.PreTrainedTokenizerFast:
    end = "<|endoftext|>"
    made = byte_level(None, end)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=end, eos_token=end, unk_token=end
    )


def llama2() -> transformers.PreTrainedTokenizerFast:
    made = sentence_pieces("<unk>", "<s>", "</s>", first="<s>")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def phi3() -> transformers.PreTrainedTokenizerFast:
    made = sentence_pieces("<unk>", "<s>", "</s>", first="<s>")
    made.add_special_tokens(_control("<|endoftext|>"))
    made.add_special_tokens(_control("<|assistant|>", "<|user|>", "<|end|>", rstrip=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="<|endoftext|>", unk_token="<unk>",
        pad_token="<|endoftext|>", chat_template=CHAT,
    )  # fmt: skip


def gemma() -> transformers.PreTrainedTokenizerFast:
    return _gemma(sentence_pieces("<pad>", "<eos>", "<bos>", "<unk>", first="<bos>", prefix=False))


def gemma4() -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer like that of gemma, whose line breaks merge only with each other."""
    made = sentence_pieces("<pad>", "<eos>", "<bos>", "<unk>", first="<bos>", prefix=False)
    document = json.loads(made.to_str())
    merges = [pair for pair in document["model"]["merges"] if "\n" not in "".join(pair)]
    document["model"]["merges"] = [["\n", "\n"], *merges]
    document["model"]["vocab"]["\n\n"] = len(document["model"]["vocab"])
    return _gemma(Tokenizer.from_str(json.dumps(document)))


def _gemma(made: Tokenizer) -> transformers.PreTrainedTokenizerFast:
    made.add_special_tokens(_control("<start_of_turn>", "<end_of_turn>"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        pad_token="<pad>", chat_template=CHAT,
    )  # fmt: skip


def bert() -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_pieces(), unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip


def roberta() -> transformers.PreTrainedTokenizerFast:
    controls = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    made = byte_level(None, *controls)
    made = _numbered_first(made, controls)
    ids = made.get_vocab()
    made.post_processor = processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), trim_offsets=True, add_prefix_space=False
    )
    return _with_roles_of_roberta(made)


def _numbered_first(tokenizer: Tokenizer, controls: Sequence[str]) -> Tokenizer:
    """Return a tokenizer in whose vocabulary these tokens come before all others."""
    document = json.loads(tokenizer.to_str())
    old = document["model"]["vocab"]
    rest = [token for token in sorted(old, key=old.__getitem__) if token not in controls]
    ids = {token: number for number, token in enumerate((*controls, *rest))}
    document["model"]["vocab"] = ids
    for added in document["added_tokens"]:
        added["id"] = ids[added["content"]]
    return Tokenizer.from_str(json.dumps(document))


def unigram(*controls: str, first: str, last: str) -> Tokenizer:
    """Return a unigram tokenizer as transformers makes it of SentencePiece's file."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(charsmap()),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=_SIZE,
        special_tokens=_control(*controls),
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    document = json.loads(tokenizer.to_str())
    # SentencePiece has scores in float32.
    document["model"]["vocab"] = [
        [text, float(np.float32(score))] for text, score in document["model"]["vocab"]
    ]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}".strip(),
        pair=f"{first} $A {last} {last} $B {last}".strip(),
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last) if token],
    )
    return tokenizer


def xlm_roberta() -> transformers.PreTrainedTokenizerFast:
    made = unigram("<s>", "<pad>", "</s>", "<unk>", "<mask>", first="<s>", last="</s>")
    return _with_roles_of_roberta(made)


def camembert() -> transformers.PreTrainedTokenizerFast:
    controls = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>")
    return _with_roles_of_roberta(unigram(*controls, "<mask>", first="<s>", last="</s>"))


def _with_roles_of_roberta(tokenizer: Tokenizer) -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="<pad>", cls_token="<s>", sep_token="</s>", mask_token="<mask>",
    )  # fmt: skip


def modernbert() -> transformers.PreTrainedTokenizerFast:
    controls = ("<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    made = byte_level(None, *controls, nfc=True)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip
