"""A model that runs one part at a time has the same output as the whole model."""

from __future__ import annotations

import math
import shutil
from contextlib import closing
from dataclasses import replace
from functools import cache
from threading import enumerate as list_threads
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pytest

import family_tokenizers
import small_models
from each import each, usual
from lazy import torch, transformers
from sharded_files import write_shards
from verdicts import forward, report_on, saved
from weightctl import WeightData, open_weights
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.engine import InferenceSession
from weightctl.errors import (
    ArchitectureError,
    ConversionError,
    EngineError,
    GraphError,
    TokenizerError,
)
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.nn.models import build_network
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid, Sharding, Whole
from weightctl.translate.tokenizer import encoding
from weightctl.translate.tokenizer.library_process import TokenizerProcess
from weightctl.verify import Subject, verify
from weightctl.verify.checks.forward.walk import LayerAhead
from weightctl.verify.figures import ForwardFigures
from weightctl.verify.run.parts import Running
from weightctl.verify.run.prompt import MOST_WINDOWS, WINDOW, Prompt, make_prompt
from weightctl.weights.derived import tensor_of
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.info import TensorInfo
from weightctl.weights.steps.numbers import numbers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crossing_fixtures import Models
    from families import Made
    from weightctl.sharding.planning import CutRulesLike
    from weightctl.verify.results import Report

FAMILIES = (
    "llama", "gpt2", "bert", "qwen2", "qwen3", "phi3", "mixtral", "qwen3moe", "gemma2", "gemma3",
)  # fmt: skip
IDS = small_models.tokens_below(96, 3, 20)
MASK = np.ones(IDS.shape, np.bool_)
MASK[1, 15:] = False


@cache
def checkpoint(family: str) -> Any:
    return small_models.checkpoint(getattr(small_models, family)())


def in_parts(running: Running, **replaced: Any) -> np.ndarray[Any, Any]:
    flow = running.begin(IDS, MASK, replaced)
    x = flow.x
    for number in range(running.layers):
        x = running.layer(number, x, flow.beside, replaced)
    return running.end(x, replaced)


def whole(of: Any) -> np.ndarray[Any, Any]:
    network = build_network(of)
    given = [IDS, MASK.astype(np.int64)][: len(network.INPUTS)]
    (found,) = InferenceSession().load(network.graph(), of.weights).execute(*given)
    return found.to_numpy()


@each("family", FAMILIES)
def test_parts_in_turn_give_what_the_whole_graph_gives_to_the_bit(family: str) -> None:
    found = in_parts(Running(checkpoint(family)))
    assert found.tobytes() == whole(checkpoint(family)).tobytes()


def test_layers_that_run_in_advance_have_the_same_outputs() -> None:
    running = Running(checkpoint("llama"))
    flow = running.begin(IDS, MASK)
    x = wanted = flow.x
    with closing(LayerAhead(running, running.layers - 1)) as ahead:
        for number in range(running.layers):
            x = ahead.take(number, x, flow.beside)
            wanted = running.layer(number, wanted, flow.beside)
            assert x.tobytes() == wanted.tobytes()
    assert not any("weightctl-layer" in thread.name for thread in list_threads())


def test_an_error_of_a_layer_in_advance_is_raised_when_its_output_is_taken() -> None:
    running = Running(checkpoint("llama"))
    flow = running.begin(IDS, MASK)
    with closing(LayerAhead(running, running.layers)) as ahead:
        x = flow.x
        for number in range(running.layers):
            x = ahead.take(number, x, flow.beside)
        with pytest.raises(IndexError):
            ahead.take(running.layers, x, flow.beside)


@each("family", ["llama", "bert", "gemma3"])
def test_a_layer_takes_several_streams_of_the_windows_at_once(family: str) -> None:
    running = Running(checkpoint(family))
    flow = running.begin(IDS, MASK)
    other = np.random.default_rng(1).standard_normal(flow.x.shape, np.float32)
    both = running.layer(1, np.concatenate([flow.x, other]), flow.beside)
    alone = [running.layer(1, x, flow.beside) for x in (flow.x, other)]
    assert np.abs(both - np.concatenate(alone)).max() < 1e-5


@each("family", FAMILIES)
def test_the_parts_together_need_all_the_weights(family: str) -> None:
    running = Running(checkpoint(family))
    parts = ["embedding", *(f"layers.{n}" for n in range(running.layers)), "output"]
    needed = {name for part in parts for name in running.weights_of(part)}
    assert needed == set(checkpoint(family).tensors)


def test_a_part_s_name_is_not_a_beginning_of_another_s() -> None:
    running = Running(small_models.checkpoint(small_models.llama(num_hidden_layers=11)))
    assert all(name.startswith("layers.1.") for name in running.weights_of("layers.1"))


def test_an_encoder_gives_states_and_all_else_logits() -> None:
    assert not Running(checkpoint("bert")).has_logits
    assert Running(checkpoint("llama")).has_logits
    assert Running(checkpoint("llama")).vocabulary == 96


def test_arrays_stand_in_for_tensors_and_are_gone_afterwards() -> None:
    running = Running(checkpoint("llama"))
    before = in_parts(running)
    name = "layers.1.mlp.down.weight"
    zeros = np.zeros(running.checkpoint.tensors[name].info.shape, np.float16)
    changed = in_parts(running, **{name: zeros})
    assert np.abs(changed - before).max() > 1e-3
    assert in_parts(running).tobytes() == before.tobytes()


def test_tensors_of_another_encoding_stand_in_for_stored_ones() -> None:
    running = Running(checkpoint("llama"))
    name, encoding = "layers.0.mlp.up.weight", ENCODINGS["Q8_0"]
    numbers = numbers_of(running.checkpoint.tensors[name])
    info = TensorInfo(name, numbers.shape, encoding)
    blocks = transcode(numbers.view(np.uint8), ENCODINGS["F32"], encoding).raw
    held = as_checkpoint({name: WeightData.stored(info, memoryview(blocks.tobytes()))})
    changed = in_parts(running, **{name: tensor_of(held.source, name)})
    assert 0 < np.abs(changed - in_parts(running)).max() < 0.1


def test_what_does_not_fit_is_refused() -> None:
    running = Running(checkpoint("llama"))
    with pytest.raises(GraphError):
        in_parts(running, **{"layers.0.mlp.up.weight": np.zeros((3, 3), np.float32)})


def test_tokens_that_the_model_does_not_know_are_refused() -> None:
    with pytest.raises(EngineError):
        Running(checkpoint("llama")).begin(IDS + 96, MASK)


def test_a_checkpoint_that_is_not_a_whole_model_is_refused() -> None:
    lacking = replace(checkpoint("llama"), missing=["norm.weight"])
    with pytest.raises(ArchitectureError, match=r"norm\.weight"):
        Running(lacking)


# Sharded models run on all ranks together, from their own files.


CLOSE = 1e-4


def cut(source: Path, out: Path, grid: Grid, rules: CutRulesLike | None = None) -> Path:
    """Write a model's parts, with the config beside each."""
    write_shards(shard_plan(open_weights(source), grid, rules=rules), out)
    for rank in range(grid.ranks) if source.is_dir() else ():
        shutil.copy(source / "config.json", out / f"rank-{rank}")
    return out


def logits(path: Path, *, together: bool = True) -> NDArray[np.float32]:
    """Return what a model says of some tokens; its ranks together, where it is cut."""
    subject = Subject(path)
    assert subject.checkpoint is not None
    running = Running(subject.checkpoint, cut=subject.cut if together else None)
    assert running.notes == ()
    ids = np.arange(3, 23).reshape(2, 10)
    flow = running.begin(ids, np.ones_like(ids, dtype=np.bool_))
    x = flow.x
    for number in range(running.layers):
        x = running.layer(number, x, flow.beside)
    return running.end(x)


def change(path: Path, rank: int, name: str) -> None:
    """Reverse the order of a tensor's elements in the file of a rank."""
    source = open_weights(path).source
    assert isinstance(source, GatheredSource)
    extent = source.ranks[rank].extents[name]
    width = source.ranks[rank].tensors[name].encoding.size
    with (path / f"rank-{rank}" / "model.safetensors").open("r+b") as file:
        file.seek(extent.offset)
        raw = file.read(extent.nbytes)
        file.seek(extent.offset)
        # Whole elements in reverse order: their bytes reversed would overflow to NaN.
        file.write(np.frombuffer(raw, f"u{width}")[::-1].tobytes())


@each("grid", [Grid(2), Grid(4), Grid(2, 1, 3)])
def test_ranks_together_say_what_the_whole_does(
    tiny_llama: Path, tmp_path: Path, grid: Grid
) -> None:
    together, whole = logits(cut(tiny_llama, tmp_path / "out", grid)), logits(tiny_llama)
    assert 0 < np.abs(together - whole).max() < CLOSE


@each("name", ["mixtral", "qwen3moe"])
def test_groups_of_experts_say_what_the_whole_does(
    name: str, family: Callable[[str], Made], tmp_path: Path
) -> None:
    source = family(name).path
    together = logits(cut(source, tmp_path / "out", Grid(2, 2, 2)))
    assert 0 < np.abs(together - logits(source)).max() < CLOSE * np.abs(together).max()


@each("option, dtype", [("--dtype", "f32"), ("--quant", "q8_0")])
def test_ranks_of_gguf_say_what_the_whole_does(
    option: str,
    dtype: str,
    family: Callable[[str], Made],
    converted: Callable[..., Path],
    tmp_path: Path,
) -> None:
    source = converted(family("llama").bf16, f"llama-{dtype}.gguf", option, dtype)
    together = logits(cut(source, tmp_path / "out", Grid(2)))
    assert 0 < np.abs(together - logits(source)).max() < CLOSE * np.abs(together).max()


# Of four ranks two have the same heads of keys, so that the whole is read without the copies.
COPY = "model.layers.1.self_attn.k_proj.weight"


def test_each_rank_computes_with_its_own_copy(tiny_llama: Path, tmp_path: Path) -> None:
    out = cut(tiny_llama, tmp_path / "out", Grid(4))
    before = logits(out)
    change(out, 1, COPY)
    assert np.array_equal(logits(out, together=False), logits(tiny_llama))
    assert np.abs(logits(out) - before).max() > 1000 * CLOSE


def test_an_altered_copy_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    out = cut(tiny_llama, tmp_path / "out", Grid(4))
    change(out, 3, COPY)
    found = verified(out, tiny_llama)
    (problem,) = found.results["structure"].problems
    assert problem.where == COPY
    assert "rank 3" in problem.text
    assert [each.where for each in found.results["forward"].problems] == ["layers.1"]


def verified(path: Path, reference: Path | None = None) -> Report:
    return verify(path, reference)


def test_a_sound_set_is_not_a_problem(tiny_llama: Path, tmp_path: Path) -> None:
    out = cut(tiny_llama, tmp_path / "out", Grid(2, 1, 2))
    found = verified(out, tiny_llama)
    assert found.problems == []
    forward = found.figures(ForwardFigures)
    assert forward is not None
    assert (forward.tp, forward.ep, forward.pp) == (2, 1, 2)
    assert forward.divergence is not None
    assert forward.divergence.mean is not None
    assert forward.divergence.mean < CLOSE


class Everywhere:
    """Every rank has all of it."""

    def sharding(self, whole: Whole, grid: Grid) -> Sharding:
        del whole
        return Sharding("replicate", ((),) * grid.ranks)

    def notes(self, names: object) -> tuple[str, ...]:
        del names
        return ()


def test_what_the_ranks_cannot_compute_together_runs_whole(
    tiny_llama: Path, tmp_path: Path
) -> None:
    out = cut(tiny_llama, tmp_path / "out", Grid(7), Everywhere())
    found = verified(out).results["forward"]
    assert isinstance(found.figures, ForwardFigures)
    assert found.figures.tp == 1
    assert len(found.figures.activations) == 5
    assert any("did not run on its ranks" in note for note in found.notes)


# Divergences and perplexities are the same as those of transformers on the same text.


LENGTH = 256
# Of what is computed in float32 by both, in another order.
WITHIN = 0.01


class Said(NamedTuple):
    """What two models say of a text, the first one being the reference."""

    divergence: float
    reference_perplexity: float
    perplexity: float
    top_1: float


def in_transformers(reference: Path, other: Path, windows: list[list[int]]) -> Said:
    """Return what transformers says of two directories, everything in float32 and by the book."""
    divergences: list[torch.Tensor] = []
    losses: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    agrees: list[torch.Tensor] = []
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (reference, other)
    ]
    for window in windows:
        tokens = torch.tensor([window])
        with torch.inference_mode():
            right, found = (model(tokens).logits[0].double().log_softmax(-1) for model in models)
        divergences.append((right.exp() * (right - found)).sum(-1))
        agrees.append((right.argmax(-1) == found.argmax(-1)).double())
        for kept, scores in zip(losses, (right, found), strict=True):
            kept.append(-scores[:-1].gather(1, tokens[0, 1:, None])[:, 0])
    first, second = (math.exp(torch.cat(kept).mean()) for kept in losses)
    return Said(
        float(torch.cat(divergences).mean()), first, second, float(torch.cat(agrees).mean())
    )


def by_verify(reference: Path, other: Path, **given: Any) -> tuple[Said, int]:
    """Return the same by `verify`, and on how many tokens."""
    report = report_on(other, reference, ["forward"], **given)
    figures = report.figures(ForwardFigures)
    assert figures is not None
    assert figures.divergence is not None
    scores = Said(
        figures.divergence.mean or 0,
        figures.divergence.reference_perplexity or 0,
        figures.perplexity or 0,
        figures.divergence.top_1 or 0,
    )
    return scores, figures.tokens


def cut_as_transformers(directory: Path, text: str) -> list[list[int]]:
    """Return the windows of a text by the tokenizer that lies in a directory.

    Each begins as the text does, where the tokenizer has something for that.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = tokenizer(text)["input_ids"]
    first = whole[: len(whole) - len(tokens)]
    step = LENGTH - len(first)
    return [first + tokens[start : start + step] for start in range(0, len(tokens), step)]


def assert_agree(found: Said, expected: Said) -> None:
    assert expected.divergence > 0
    assert found.divergence == pytest.approx(expected.divergence, rel=WITHIN)
    assert found.reference_perplexity == pytest.approx(expected.reference_perplexity, rel=WITHIN)
    assert found.perplexity == pytest.approx(expected.perplexity, rel=WITHIN)
    # A choice or two may be as good as even.
    assert found.top_1 == pytest.approx(expected.top_1, abs=0.01)


@pytest.mark.parametrize("kind", usual(["Q4_K"], ["Q8_0", "Q4_K"]))
def test_of_a_small_model(kind: str, healthy: Models, tiny_llama: Path) -> None:
    text = (tiny_llama / "held-out.txt").read_text()[:1200]
    windows = cut_as_transformers(tiny_llama, text)
    found, tokens = by_verify(tiny_llama, healthy.gguf("tiny-llama", kind), text=text)
    assert tokens == sum(map(len, windows))
    assert len(windows) > 1
    back = healthy.directory("tiny-llama", kind)
    assert_agree(found, in_transformers(tiny_llama, back, windows))


def test_of_tokens(healthy: Models, tiny_llama: Path) -> None:
    tokens = cut_as_transformers(tiny_llama, (tiny_llama / "held-out.txt").read_text()[:600])[0][
        :120
    ]
    found, _ = by_verify(tiny_llama, healthy.gguf("tiny-llama", "Q4_0"), tokens=tuple(tokens))
    back = healthy.directory("tiny-llama", "Q4_0")
    assert_agree(found, in_transformers(tiny_llama, back, [tokens]))


@pytest.mark.long
@pytest.mark.real
@each("kind", ["Q8_0", "Q4_0"])
def test_of_a_real_model(kind: str, healthy: Models, tiny_llama: Path) -> None:
    text = (tiny_llama / "held-out.txt").read_text()[:1200]
    windows = cut_as_transformers(healthy("smollm2"), text)
    found, tokens = by_verify(healthy("smollm2"), healthy.gguf("smollm2", kind), text=text)
    assert tokens == sum(map(len, windows))
    back = healthy.directory("smollm2", kind)
    assert_agree(found, in_transformers(healthy("smollm2"), back, windows))


# The tokens that a model runs on: windows of a text, or of given tokens.


@cache
def tokenizer(kind: str) -> Any:
    return getattr(family_tokenizers, kind)()


@pytest.fixture
def llama(tmp_path: Path) -> Subject:
    model = small_models.llama(vocab_size=700, max_position_embeddings=512, num_hidden_layers=1)
    return saved(tmp_path, model, tokenizer("llama2"))


@pytest.fixture
def without_tokenizer(tmp_path: Path) -> Subject:
    return saved(tmp_path, small_models.llama(num_hidden_layers=1))


def made(
    subject: Subject, *, tokens: Sequence[int] | None = None, text: str | None = None
) -> Prompt:
    return make_prompt(tokens, text, subject)


def words(count: int) -> str:
    return "The naïve café owner. " * count


def test_without_anything_given_the_text_is_our_own(llama: Subject) -> None:
    found = made(llama)
    assert found.source == "the built-in text"
    assert found.is_text
    assert found.text_of(found.ids[0, 0]) == "<s>"


def test_every_window_begins_as_the_tokenizer_begins_a_text(llama: Subject) -> None:
    found = made(llama, text=words(100))
    assert len(found.ids) > 1
    assert (found.ids[:, 0] == tokenizer("llama2").bos_token_id).all()
    assert found.ids.shape[1] == WINDOW


def test_windows_hold_the_text_in_order(llama: Subject) -> None:
    found = made(llama, text=words(100))
    inner = found.ids[:, 1:][found.mask[:, 1:]]
    whole = tokenizer("llama2")(words(100))["input_ids"]
    assert inner.tolist() == whole[1:]


def test_what_is_behind_the_end_of_the_last_window_is_masked(llama: Subject) -> None:
    found = made(llama, tokens=tuple(range(1, 301)))
    assert found.mask.sum(1).tolist() == [256, 44]
    assert found.count == 300
    assert not found.ids[~found.mask].any()


def test_what_does_not_fit_into_the_windows_is_reported(llama: Subject) -> None:
    found = made(llama, tokens=(5,) * (WINDOW * MOST_WINDOWS + 7))
    assert len(found.ids) == MOST_WINDOWS
    assert "7 were left out" in found.notes[0]


def test_tokens_are_taken_as_they_are(llama: Subject) -> None:
    found = made(llama, tokens=(7, 6, 5))
    assert found.ids.tolist() == [[7, 6, 5]]
    assert found.mask.all()


def test_an_encoder_s_windows_begin_and_end_as_its_tokenizer_has_them(tmp_path: Path) -> None:
    model = small_models.bert(vocab_size=700, max_position_embeddings=32, num_hidden_layers=1)
    found = made(saved(tmp_path, model, tokenizer("bert")), text=words(10))
    ends = [
        window[mask][[0, -1]].tolist() for window, mask in zip(found.ids, found.mask, strict=True)
    ]
    named = tokenizer("bert")
    assert ends == [[named.cls_token_id, named.sep_token_id]] * len(ends)
    assert len(ends) > 1


def test_windows_are_no_longer_than_the_model_s_context(tmp_path: Path) -> None:
    subject = saved(tmp_path, small_models.gpt2(n_positions=16, n_layer=1))
    assert made(subject, tokens=(1,) * 40).ids.shape == (3, 16)
    assert made(subject).ids.shape == (1, 16)


def test_without_a_tokenizer_tokens_are_drawn_and_that_is_reported(
    without_tokenizer: Subject,
) -> None:
    found, again = made(without_tokenizer), made(without_tokenizer)
    assert not found.is_text
    assert "random tokens" in found.notes[0]
    assert (found.ids == again.ids).all()
    assert found.ids.max() < 96


def test_a_text_without_a_tokenizer_is_refused(without_tokenizer: Subject) -> None:
    with pytest.raises(ConversionError, match="no tokenizer"):
        made(without_tokenizer, text="hello")


@each("tokens", [(0, 96), (-1,), (2**70,), ()])
def test_prompts_of_unknown_tokens_are_refused(
    tokens: tuple[int, ...], without_tokenizer: Subject
) -> None:
    with pytest.raises(ConversionError):
        made(without_tokenizer, tokens=tokens)


def test_a_text_of_nothing_is_refused(llama: Subject) -> None:
    with pytest.raises(ConversionError, match="no tokens"):
        made(llama, text="")


def test_a_tokenizer_of_another_model_is_found_out(tmp_path: Path) -> None:
    subject = saved(tmp_path, small_models.llama(num_hidden_layers=1), tokenizer("llama2"))
    with pytest.raises(TokenizerError, match="does not have all tokens of the tokenizer"):
        made(subject)


def test_masks_and_ids_are_of_one_shape(llama: Subject) -> None:
    found = made(llama)
    assert found.ids.shape == found.mask.shape
    assert found.ids.dtype == np.int64
    assert found.mask.dtype == np.bool_


class Counted(TokenizerProcess):
    """A tokenizer that notes what is asked of it."""

    done: ClassVar[list[str]] = []

    def __init__(self, document: bytes, where: str) -> None:
        self.done.append("read")
        super().__init__(document, where)

    def encode(self, text: str, *, is_whole: bool) -> list[int]:
        self.done.append(text)
        return super().encode(text, is_whole=is_whole)


@each("has_tokenizer, times", [((True, True), 2), ((True, False), 1)])
def test_each_tokenizer_is_read_once_and_cuts_the_text_once(
    has_tokenizer: tuple[bool, bool], times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects: list[Subject] = []
    for name, has in zip("ab", has_tokenizer, strict=True):
        (directory := tmp_path / name).mkdir()
        model = small_models.llama(vocab_size=700, num_hidden_layers=1)
        subjects.append(saved(directory, model, tokenizer("llama2") if has else None))
    monkeypatch.setattr(encoding, "TokenizerProcess", Counted)
    monkeypatch.setattr(Counted, "done", [])
    result, figures = forward(subjects[0], reference=subjects[1], text="hello")
    assert not result.problems
    assert figures.source == "the text"
    assert Counted.done.count("read") == times
    assert Counted.done.count("hello") == times
