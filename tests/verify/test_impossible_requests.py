"""Requests that cannot be fulfilled, or that contradict themselves, are errors of the caller."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from shutil import copytree
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import family_tokenizers
import small_models
import weightctl
from conftest import ROOT
from each import each
from verdicts import forward, saved
from weightctl.errors import ConversionError, FormatError, OutputError
from weightctl.verify import Request, Subject, verify_request
from weightctl.verify.checks.finite.survey import Stretch, _survey_units
from weightctl.verify.request import Workers, run_units
from weightctl.write.executors import WorkerLostError
from weightctl.write.executors.processes import ProcessExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from weightctl.verify import Report


@pytest.fixture
def without_tokenizer(tmp_path: Path) -> Subject:
    (directory := tmp_path / "without").mkdir()
    model = small_models.llama(vocab_size=700, max_position_embeddings=512, num_hidden_layers=1)
    return saved(directory, model)


@pytest.fixture
def with_tokenizer(tmp_path: Path) -> Subject:
    (directory := tmp_path / "with").mkdir()
    model = small_models.llama(vocab_size=700, max_position_embeddings=512, num_hidden_layers=1)
    return saved(directory, model, family_tokenizers.llama2())


@each(
    "asked, message",
    [
        ({"tokens": (1, 700)}, "the model does not have all of the given tokens: "),
        ({"tokens": ()}, r"--tokens \(tokens in Python\) is empty"),
        ({"text": "hello"}, "no tokenizer for the text"),
    ],
)
def test_what_the_model_cannot_run_on_is_refused_before_anything_is_checked(
    asked: dict[str, Any], message: str, without_tokenizer: Subject
) -> None:
    done: list[str] = []
    request = Request(
        subject=without_tokenizer, progress=lambda doing, _: done.append(doing), **asked
    )
    with pytest.raises(ConversionError, match=message):
        verify_request(request)
    assert not done


def test_a_text_of_half_a_character_is_refused(with_tokenizer: Subject) -> None:
    with pytest.raises(ConversionError, match="at character 6"):
        verify_request(Request(subject=with_tokenizer, text="hello \ud800"), ["forward"])


def test_what_nothing_runs_on_is_not_looked_at(without_tokenizer: Subject) -> None:
    assert not verify_request(Request(subject=without_tokenizer, tokens=(700,)), ["names"]).problems


def test_a_text_is_cut_by_the_tokenizer_of_the_only_one_that_has_one(
    with_tokenizer: Subject, without_tokenizer: Subject
) -> None:
    result, figures = forward(with_tokenizer, reference=without_tokenizer, text="hello")
    assert not result.problems
    assert figures.source == "the text"


def test_plain_english_makes_sense_to_a_model_that_works(with_tokenizer: Subject) -> None:
    (alone, figures), (given, _) = forward(with_tokenizer), forward(with_tokenizer, text="hello")
    assert figures.perplexity is not None
    # One that was drawn does not work.
    assert "worse than guessing among 700 tokens" in alone.problems[0].text
    assert not given.problems


def test_a_damaged_tokenizer_is_the_checkpoint_s(with_tokenizer: Subject) -> None:
    with open(f"{with_tokenizer.path}/tokenizer.json", "w") as file:
        file.write("{}")
    report = verify_request(Request(subject=with_tokenizer, text="hello"), ["forward"])
    assert "the package `tokenizers` rejects the tokenizer" in report.problems[0].text


def test_skipping_all_that_was_asked_for_is_refused(without_tokenizer: Subject) -> None:
    with pytest.raises(ConversionError, match="every check is skipped"):
        verify_request(Request(subject=without_tokenizer), ["names"], ["names"])


@each(
    "asked, skip, message",
    [
        ({"max_perplexity": 5.0}, ["forward"], "--max-ppl applies to the check `forward`"),
        ({"max_divergence": 5.0}, [], "there is no"),
        ({"max_rmse": 5.0}, [], "there is no"),
        ({"max_perplexity": 5.0, "layers": range(2)}, [], "leaves out its last layer, 2"),
        ({"layers": range(90, 95)}, [], "the model has layers 0 to 2"),
        ({"layers": range(2, 10**40)}, ["forward"], "the model has layers 0 to 2"),
        ({"layers": range(0)}, [], "the model has layers 0 to 2"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_looked_at(
    asked: dict[str, Any], skip: list[str], message: str, tiny_llama: Path
) -> None:
    done: list[str] = []
    request = Request(
        subject=Subject(tiny_llama), progress=lambda doing, _: done.append(doing), **asked
    )
    with pytest.raises(ConversionError, match=message):
        verify_request(request, skip=skip)
    assert not done


def test_a_bar_of_a_comparison_that_is_skipped_is_refused(tiny_llama: Path) -> None:
    subject = Subject(tiny_llama)
    request = Request(subject=subject, reference=subject, max_rmse=0.1)
    with pytest.raises(ConversionError, match="--max-rmse applies to the check `values`"):
        verify_request(request, ["names"])


def test_a_layer_in_the_middle_may_be_looked_at_by_itself(tiny_llama: Path) -> None:
    request = Request(subject=Subject(tiny_llama), layers=range(1, 2))
    assert not verify_request(request, ["finite"]).problems


# Checks by workers: the report is that of a run without them.


CHECKS = ["structure", "finite", "values"]


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor(2)
    yield executor
    executor.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    copytree(ROOT / "fixtures" / "tiny-llama", path)
    return path


def damaged(model: Path, folder: Path) -> Path:
    """Return a copy with NaN, a lost row, and a tensor with other values."""
    path = folder / "damaged"
    copytree(model, path)
    tensors = load_file(path / "model.safetensors")
    names = sorted(name for name in tensors if tensors[name].ndim == 2)
    tensors[names[0]][0, 3] = np.nan
    tensors[names[1]][1] = 0
    tensors[names[2]] = tensors[names[2]][::-1].copy()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def reports(path: Path, against: Path | None, on: str | Executor | None, **options: Any) -> Report:
    reference = None if against is None else Subject(against)
    request = Request(subject=Subject(path), reference=reference)
    checks = CHECKS if against is not None else CHECKS[:2]
    return replace(verify_request(request, checks, on=on, **options), seconds={})


def quantized(model: Path, folder: Path) -> Path:
    weightctl.convert(model, folder / "model.gguf", quant="Q4_K_M")
    return folder / "model.gguf"


def sharded(model: Path, folder: Path) -> Path:
    weightctl.shard(model, folder / "shards", tp=2)
    return folder / "shards"


@pytest.mark.parametrize("make", [damaged, quantized, sharded])
def test_workers_find_the_same(
    make: Callable[[Path, Path], Path], model: Path, tmp_path: Path, workers: ProcessExecutor
) -> None:
    path = make(model, tmp_path)
    alone = reports(path, model, None)
    assert reports(path, model, workers) == alone
    assert reports(path, model, workers, task_size="20kB") == alone
    assert reports(path, None, workers) == reports(path, None, None)


def test_a_changed_shard_is_found_by_workers(
    model: Path, tmp_path: Path, workers: ProcessExecutor
) -> None:
    path = sharded(model, tmp_path)
    file = path / "rank-1" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    found = reports(path, None, workers)
    assert "the values on rank 1 were changed" in found.problems[0].text
    assert found == reports(path, None, None)


def test_the_command_prints_the_same(
    model: Path, tmp_path: Path, weightctl: Callable[..., Any]
) -> None:
    path = damaged(model, tmp_path)
    words = ("verify", path, "--against", model, "--skip", "forward", "--json")
    alone, by_workers = weightctl(*words), weightctl(*words, "--on", "processes:2")
    assert by_workers.returncode == alone.returncode == 1
    assert without_times(by_workers.stdout) == without_times(alone.stdout)


def without_times(text: str) -> Any:
    import json

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items() if key != "seconds"}
        return [clean(each) for each in value] if isinstance(value, list) else value

    return clean(json.loads(text))


def test_the_python_call_takes_an_executor(model: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        assert reports(model, model, executor) == reports(model, model, None)


def test_a_worker_that_dies_is_replaced(model: Path) -> None:
    executor = ProcessExecutor(2)
    killed: list[int] = []

    def kill(_: str, _done: float) -> None:
        if not killed and executor.process_ids():
            killed.append(executor.process_ids()[0])
            os.kill(killed[0], signal.SIGKILL)

    request = Request(subject=Subject(model), progress=kill)
    try:
        found = verify_request(request, ["finite"], on=executor, task_size="20kB")
    finally:
        executor.shutdown(cancel_futures=True)
    assert killed
    assert replace(found, seconds={}) == replace(
        verify_request(Request(subject=Subject(model)), ["finite"]), seconds={}
    )


class LosingExecutor(ThreadPoolExecutor):
    """Loses every call."""

    def submit(self, _fn: Any, /, *_args: Any, **_kwargs: Any) -> Any:
        def lose() -> None:
            raise WorkerLostError("gone")

        return super().submit(lose)


def test_workers_that_always_end_stop_the_check(model: Path) -> None:
    with LosingExecutor(1) as executor, pytest.raises(OutputError, match="5 workers have ended"):
        verify_finite(model, executor)


def verify_finite(model: Path, on: Executor) -> None:
    workers = Workers(on, Request(subject=Subject(model)), "1GB")
    name = next(iter(weightctl.open_weights(model).header.tensors))
    list(workers.map(_survey_units, [Stretch(name, 0, 32)], [64], lambda _: None))


@each(
    "changes, error, message",
    [
        ({"version": "0"}, ConversionError, "a worker has weightctl"),
        ({"fingerprints": ((),)}, FormatError, "the files that a worker reads differ"),
    ],
)
def test_a_worker_with_other_files_or_another_version_refuses(
    changes: dict[str, Any], error: type[Exception], message: str, model: Path
) -> None:
    with ThreadPoolExecutor(1) as executor:
        job = Workers(executor, Request(subject=Subject(model)), "1GB")._job._replace(**changes)
    with pytest.raises(error, match=message):
        run_units(job, _survey_units, [])


def test_an_executor_that_does_not_exist_is_refused(model: Path) -> None:
    with pytest.raises(ConversionError, match="is not an executor"):
        verify_request(Request(subject=Subject(model)), ["finite"], on="nowhere:2")
