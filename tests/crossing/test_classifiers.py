"""Encoders with a classifier head: converted, back, run, and on two ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import family_runs
import family_tokenizers
from lazy import torch, transformers
from llama_cpp import ask
from once import once
from runs import executed
from verdicts import assert_healthy, report_on
from weightctl import convert, open_weights, shard
from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families import recognize
from weightctl.nn.models import build_network
from weightctl.split import Grid
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

MOST_DIFFERENCE = 2e-3
LABELS = ["bad", "so-so", "good"]


class Kind(NamedTuple):
    """A type of encoder, the kind of its tokenizer, and what of its config is not usual."""

    model_type: str
    tokenizer: str
    config: dict[str, Any]


KINDS = {
    "bert": Kind("bert", "bert", {}),
    "roberta": Kind("roberta", "roberta", {}),
    "xlm_roberta": Kind("xlm-roberta", "xlm_roberta", {}),
    "camembert": Kind("camembert", "camembert", {}),
    "distilbert": Kind("distilbert", "bert",
                       {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}),
    "modernbert": Kind("modernbert", "modernbert",
                       {"local_attention": 16, "classifier_pooling": "mean"}),
    "modernbert-first": Kind("modernbert", "modernbert", {"local_attention": 16}),
}  # fmt: skip
# llama.cpp has no head with a ReLU, and that of a ModernBERT reads the mean of all tokens.
NOT_IN_GGUF = {
    "modernbert-first": "`head_pooling` is `'first'`, but llama.cpp would read `'mean'`",
}
IN_GGUF = [name for name in KINDS if name not in NOT_IN_GGUF]
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 128}  # fmt: skip


class Classifier(NamedTuple):
    """A checkpoint, and what transformers says of some tokens: a number for each label."""

    path: Path
    tokens: list[int]
    expected: NDArray[np.float32]


@pytest.fixture(scope="session")
def made(crossed: Path) -> Callable[..., Classifier]:
    def make(name: str, labels: list[str] = LABELS) -> Classifier:
        path = once(
            crossed / f"classifier-{name}-{len(labels)}", lambda half: save(name, labels, half)
        )
        tokens = json.loads((path / "tokens.json").read_text())
        return Classifier(path / "hf", tokens, np.load(path / "expected.npy"))

    return make


@pytest.fixture(scope="session")
def as_gguf(made: Callable[..., Classifier]) -> Callable[..., Path]:
    def make(name: str, labels: list[str] = LABELS) -> Path:
        source = made(name, labels).path
        return once(
            source.with_name("model.gguf"),
            lambda half: convert(source, half, to="gguf", dtype="f32"),
        )

    return make


def save(name: str, labels: list[str], into: Path) -> None:
    kind = KINDS[name]
    tokenizer = getattr(family_tokenizers, kind.tokenizer)()
    ids = {
        f"{each}_token_id": getattr(tokenizer, f"{each}_token_id") for each in ("bos", "eos", "pad")
    }
    names = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    sizes = {} if name == "distilbert" else SIZES
    config = transformers.CONFIG_MAPPING[kind.model_type](
        **(ids | sizes | names | {"vocab_size": len(tokenizer)} | kind.config)
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(
        config, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 2 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.3
            parameter.add_(torch.randn_like(parameter) * scale)
    tokens = torch.randint(8, len(tokenizer) - 8, (40,)).tolist()
    model.save_pretrained(into / "hf")
    tokenizer.save_pretrained(into / "hf")
    np.save(into / "expected.npy", run(model, tokens))
    (into / "tokens.json").write_text(json.dumps(tokens))


def run(model: Any, tokens: list[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].numpy()


def run_ours(path: Path, tokens: list[int], grid: Grid | None = None) -> NDArray[np.float32]:
    return family_runs.run_ours(path, tokens, grid)[0]


def assert_same(found: NDArray[Any], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < MOST_DIFFERENCE * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name in IN_GGUF if name != "distilbert"])
def test_llama_cpp_says_of_a_text_what_transformers_says(
    name: str, made: Callable[..., Classifier], as_gguf: Callable[..., Path]
) -> None:
    given = made(name)
    (found,) = ask(as_gguf(name), ("scores", given.tokens, len(LABELS)))
    assert_same(found, given.expected)


def test_a_score_alone_is_a_label_without_a_name(
    made: Callable[..., Classifier], as_gguf: Callable[..., Path]
) -> None:
    given = made("xlm_roberta", ["LABEL_0"])
    (found,) = ask(as_gguf("xlm_roberta", ["LABEL_0"]), ("scores", given.tokens, 1))
    assert_same(found, given.expected)
    assert_same(run_ours(given.path, given.tokens, Grid(2)), given.expected)


@pytest.mark.parametrize("name", IN_GGUF)
def test_transformers_loads_what_comes_back_as_the_same_classifier(
    name: str, made: Callable[..., Classifier], as_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    given = made(name)
    convert(as_gguf(name), tmp_path / "back", dtype="f32")
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "back", attn_implementation="eager", output_loading_info=True
    )
    assert (info["missing_keys"], info["unexpected_keys"]) == (set(), set())
    assert [model.config.id2label[number] for number in range(3)] == LABELS
    assert model.config.label2id == {each: number for number, each in enumerate(LABELS)}
    assert_same(run(model.eval(), given.tokens), given.expected)
    # What older versions of transformers find there.
    assert header_of(open_weights(tmp_path / "back")).tensors.keys() == (
        header_of(open_weights(given.path)).tensors.keys()
    )


@pytest.mark.parametrize("name", KINDS)
def test_our_module_says_of_a_text_what_transformers_says(
    name: str, made: Callable[..., Classifier], as_gguf: Callable[..., Path]
) -> None:
    given = made(name)
    assert_same(run_ours(given.path, given.tokens), given.expected)
    assert_same(run_ours(given.path, given.tokens, Grid(2)), given.expected)
    if name in IN_GGUF:
        assert_same(run_ours(as_gguf(name), given.tokens), given.expected)


@pytest.mark.parametrize("name", KINDS)
def test_two_ranks_have_all_bytes_of_a_classifier(
    name: str, made: Callable[..., Classifier], tmp_path: Path
) -> None:
    source = made(name).path
    shard(source, tmp_path / "ranks", tp=2)
    whole, gathered = open_weights(source), open_weights(tmp_path / "ranks")
    assert header_of(gathered).tensors.keys() == header_of(whole).tensors.keys()
    for tensor in header_of(whole).tensors:
        one, other = (each[tensor].data().to_numpy() for each in (whole, gathered))
        assert np.array_equal(one, other), tensor


@pytest.mark.parametrize("name", IN_GGUF)
def test_verify_finds_nothing_wrong_with_a_classifier(
    name: str, made: Callable[..., Classifier], as_gguf: Callable[..., Path]
) -> None:
    assert_healthy(report_on(as_gguf(name), made(name).path))


def test_a_classifier_that_llama_cpp_computes_otherwise_has_a_note(
    made: Callable[..., Classifier], tmp_path: Path
) -> None:
    note = "it uses tanh in the classifier in place of ReLU"
    done = convert(made("distilbert").path, tmp_path / "model.gguf")
    assert any(note in each for each in done.notes)
    with pytest.raises(ConversionError, match=note):
        convert(made("distilbert").path, tmp_path / "strict.gguf", strict=True)


@pytest.mark.parametrize("name", NOT_IN_GGUF)
def test_a_classifier_that_gguf_cannot_state_is_refused(
    name: str, made: Callable[..., Classifier], tmp_path: Path
) -> None:
    with pytest.raises(ArchitectureError) as raised:
        convert(made(name).path, tmp_path / "model.gguf")
    assert NOT_IN_GGUF[name] in raised.value.message


def test_labels_without_a_number_are_refused(made: Callable[..., Classifier]) -> None:
    document = json.loads((made("bert").path / "config.json").read_text())
    with pytest.raises(ArchitectureError, match="`id2label` does not name the labels from 0 to 1"):
        recognize(open_weights(made("bert").path), {**document, "id2label": {"0": "a", "2": "b"}})


def test_a_mean_leaves_out_padding(made: Callable[..., Classifier]) -> None:
    given = made("modernbert")
    network = build_network(recognize(open_weights(given.path)))
    count, rest = len(given.tokens), 5
    tokens = np.array([given.tokens + [9] * rest])
    mask = np.array([[1] * count + [0] * rest], np.int64)
    weights = recognize(open_weights(given.path)).weights
    (output,) = executed(network.graph(), tokens, mask, weights=weights)
    assert_same(output[0, 0], given.expected)


def test_keys_of_heads_say_nothing_of_an_encoder_without_one(
    made: Callable[..., Classifier],
) -> None:
    path = made("modernbert").path
    document = json.loads((path / "config.json").read_text())
    changes = {"architectures": ["ModernBertModel"], "classifier_pooling": "mean"}
    assert recognize(open_weights(path), {**document, **changes}).fields["labels"] == 0
