"""Outputs on the Hugging Face Hub: all files appear in one commit, with the bytes of local ones."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from each import usual
from hub_fixtures import NEW_MODEL, NEW_URL, download
from outcomes import random_model, strikes
from servers.base import Answer, Call, LoseAnswer
from servers.hub import READER, XetStore
from tested_stores import WRITE_FAULTS, attempt, hasten, random_moments, settle
from weightctl import convert, open_weights, save, shard
from weightctl.errors import ConversionError, OutputError, WeightctlError
from weightctl.storage.traffic import TRAFFIC
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from servers.hub import HubServer


OUTPUTS = {
    "a directory": ("", {"dtype": "bf16"}),
    "a set of parts": ("", {"max_shard_size": "2MB"}),
    "GGUF": ("/out.gguf", {"quant": "Q8_0", "names": "keep"}),
    "aligned GGUF": ("/out.gguf", {"align": 65536, "names": "keep"}),
    "parts of GGUF": ("/out.gguf", {"max_shard_size": "2MB", "names": "keep"}),
    "PyTorch": ("/out.pt", {"dtype": "f16"}),
    "a file below a directory": ("/below/out.safetensors", {}),
    "a directory below": ("/below/", {}),
}
USUAL_OUTPUTS = ["a set of parts", "GGUF", "PyTorch", "a file below a directory"]


@pytest.mark.parametrize(
    ("kind", "threads"),
    usual(product(USUAL_OUTPUTS, [4]), product(OUTPUTS, [1, 4])),
)
def test_an_output_has_the_bytes_of_a_local_one(
    kind: str, threads: int, xet_hub: HubServer, matrices: Path, tmp_path: Path
) -> None:
    name, options = OUTPUTS[kind]
    local = tmp_path / "here" / name.strip("/")
    local.parent.mkdir(parents=True, exist_ok=True)
    convert(matrices, local, **options)
    convert(matrices, f"{NEW_URL}{name}", threads=threads, memory="8MiB", **options)
    found = download(xet_hub, tmp_path)
    files = [path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*")]
    files = [path for path in files if (tmp_path / "here" / path).is_file()]
    assert {*map(str, files)} == {*xet_hub.repositories[NEW_MODEL].tree()}
    for path in files:
        assert (found / path).read_bytes() == (tmp_path / "here" / path).read_bytes(), path
    assert len(xet_hub.repositories[NEW_MODEL].messages) == 2


@pytest.mark.usefixtures("xet_hub")
def test_an_output_is_opened_from_the_hub(matrices: Path) -> None:
    convert(matrices, NEW_URL, max_shard_size="2MB")
    found = header_of(open_weights(NEW_URL)).tensors
    assert found == header_of(open_weights(matrices)).tensors


def test_files_of_a_model_are_in_one_commit_that_says_what_they_are(
    xet_hub: HubServer, matrices: Path
) -> None:
    convert(matrices, f"{NEW_URL}/out.gguf", quant="Q8_0", names="keep")
    assert xet_hub.repositories[NEW_MODEL].messages[1:] == ["Q8_0 GGUF converted with weightctl"]
    convert(matrices, NEW_URL, dtype="bf16")
    message = xet_hub.repositories[NEW_MODEL].messages[2]
    assert message == "BF16 safetensors converted with weightctl"


@pytest.mark.parametrize(("suffix", "threads"), usual(
    [("pt", 1), ("safetensors", 3), ("gguf", 1)], product(["pt", "safetensors", "gguf"], [1, 3])
))  # fmt: skip
def test_threads_come_to_an_end_without_memory_for_bytes_that_wait(
    suffix: str, threads: int, xet_hub: HubServer, tmp_path: Path
) -> None:
    rows = 0 if suffix != "gguf" else 1
    arrays = {
        f"t{number:02d}": np.full((rows if number % 3 == 0 else 300, 256), number, np.float32)
        for number in range(12)
    }
    save(arrays, tmp_path / f"out.{suffix}")
    save(arrays, f"{NEW_URL}/out.{suffix}", threads=threads, memory=1)
    assert xet_hub.repositories[NEW_MODEL][f"out.{suffix}"] == (
        (tmp_path / f"out.{suffix}").read_bytes()
    )


def test_what_the_hub_has_is_not_sent_again(xet_hub: HubServer, tmp_path: Path) -> None:
    arrays = {
        f"t{number:02d}": np.random.default_rng(number).standard_normal((256, 256), np.float32)
        for number in range(64)
    }
    before = TRAFFIC.counts
    save(arrays, f"{NEW_URL}/out.safetensors")
    first = TRAFFIC.counts
    arrays["t30"][:160] += 1  # 1 % of all
    save(arrays, f"{NEW_URL}/out.safetensors", force=True)
    again = TRAFFIC.counts.since(first).bytes_sent
    nbytes = len(xet_hub.repositories[NEW_MODEL]["out.safetensors"])
    assert first.since(before).bytes_sent > 0.9 * nbytes
    assert 0 < again < nbytes / 20
    save(arrays, tmp_path / "out.safetensors")
    found = xet_hub.repositories[NEW_MODEL]["out.safetensors"]
    assert found == (tmp_path / "out.safetensors").read_bytes()


def test_a_large_file_beside_the_weights_is_uploaded_too(
    xet_hub: HubServer, matrices: Path, tmp_path: Path
) -> None:
    shutil.copytree(matrices, tmp_path / "model")
    content = b'{"a": "%s"}' % (b"x" * (11 << 20))
    (tmp_path / "model" / "tokenizer.json").write_bytes(content)
    convert(tmp_path / "model", NEW_URL)
    tree = xet_hub.repositories[NEW_MODEL].tree()
    assert tree["tokenizer.json"].sha256
    assert not tree["config.json"].sha256
    assert (download(xet_hub, tmp_path) / "tokenizer.json").read_bytes() == content


def test_a_model_card_of_the_repository_is_kept(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.create(NEW_MODEL).put("README.md", b"mine")
    convert(matrices, NEW_URL)
    convert(matrices, NEW_URL, force=True)
    assert xet_hub.repositories[NEW_MODEL]["README.md"] == b"mine"


def test_the_model_card_of_the_source_is_used_where_there_is_none(
    xet_hub: HubServer, matrices: Path
) -> None:
    convert(matrices, NEW_URL)
    assert b"the card of the source" in xet_hub.repositories[NEW_MODEL]["README.md"]


def test_other_files_of_a_repository_stay(xet_hub: HubServer, matrices: Path) -> None:
    repository = xet_hub.create(NEW_MODEL)
    repository.put("other.gguf", b"other")
    repository.put("below/model.safetensors", b"below")
    convert(matrices, NEW_URL)
    convert(matrices, NEW_URL, max_shard_size="2MB", force=True)
    assert repository["other.gguf"] == b"other"
    assert repository["below/model.safetensors"] == b"below"


def test_old_parts_are_deleted_in_the_same_commit(xet_hub: HubServer, matrices: Path) -> None:
    convert(matrices, NEW_URL, max_shard_size="2MB")
    repository = xet_hub.repositories[NEW_MODEL]
    assert "model.safetensors.index.json" in repository.tree()
    convert(matrices, NEW_URL, force=True)
    weights = [name for name in repository.tree() if name.startswith("model")]
    assert weights == ["model.safetensors"]
    assert len(repository.messages) == 3


def test_a_new_repository_can_be_private(xet_hub: HubServer, matrices: Path) -> None:
    convert(matrices, f"{NEW_URL}/a.safetensors", private=True)
    assert xet_hub.repositories[NEW_MODEL].private
    convert(matrices, "hf://org/public/a.safetensors")
    assert not xet_hub.repositories["org/public"].private


def test_a_branch_is_written(xet_hub: HubServer, matrices: Path, tmp_path: Path) -> None:
    repository = xet_hub.create(NEW_MODEL)
    repository.put("README.md", b"x", revision="v1.5")
    convert(matrices, f"{NEW_URL}@v1.5")
    assert "model.safetensors" not in repository.tree()
    convert(matrices, tmp_path / "here")
    found = download(xet_hub, tmp_path, revision="v1.5") / "model.safetensors"
    assert found.read_bytes() == (tmp_path / "here" / "model.safetensors").read_bytes()


def test_a_pull_request_leaves_the_branch(
    xet_hub: HubServer, matrices: Path, tmp_path: Path
) -> None:
    repository = xet_hub.create(NEW_MODEL)
    done = convert(matrices, NEW_URL, pr=True)
    assert repository.tree() == {}
    assert done.saved is not None
    assert done.saved.pull_request == f"{xet_hub.url}/{NEW_MODEL}/discussions/1"
    found = download(xet_hub, tmp_path, revision="refs/pr/1")
    assert (found / "model.safetensors").is_file()


def test_a_repository_with_a_dot_in_its_name_is_a_directory(
    xet_hub: HubServer, matrices: Path
) -> None:
    convert(matrices, "hf://org/Model-1.5")
    assert "model.safetensors" in xet_hub.repositories["org/Model-1.5"].tree()


def test_a_remote_model_is_written_beside_itself(xet_hub: HubServer, matrices: Path) -> None:
    convert(matrices, NEW_URL)
    convert(NEW_URL, f"{NEW_URL}/out.gguf", quant="Q8_0", names="keep")
    assert {"model.safetensors", "out.gguf"} <= xet_hub.repositories[NEW_MODEL].tree().keys()


# Outputs that the Hugging Face Hub refuses: an error says why, and nothing is committed.


LOGIN = "set HF_TOKEN, or log in with `hf auth login`"


def refuse(source: Path, url: str = NEW_URL, **options: object) -> WeightctlError:
    """Return the error of a conversion."""
    with pytest.raises(WeightctlError) as caught:
        convert(source, url, **options)
    return caught.value


def test_a_file_is_not_replaced_without_force(xet_hub: HubServer, matrices: Path) -> None:
    repository = xet_hub.create(NEW_MODEL)
    repository.put("model.safetensors", b"mine")
    error = refuse(matrices)
    assert error.message == f"{NEW_URL}/model.safetensors exists"
    assert error.hint == "to replace it, use --force (force=True in Python)"
    assert repository["model.safetensors"] == b"mine"
    convert(matrices, NEW_URL, force=True)
    assert repository["model.safetensors"] != b"mine"


def test_a_config_is_not_replaced_without_force(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.create(NEW_MODEL).put("config.json", b"mine")
    assert refuse(matrices).message == f"{NEW_URL}/config.json exists"


def test_other_parts_of_the_same_name_are_refused_without_force(
    xet_hub: HubServer, matrices: Path
) -> None:
    xet_hub.create(NEW_MODEL).put("out-00001-of-00002.gguf", b"mine")
    error = refuse(matrices, f"{NEW_URL}/out.gguf", names="keep")
    assert error.message == (
        f"out-00001-of-00002.gguf in {NEW_URL}/out.gguf is a file of an older checkpoint with the "
        "same name as the output: programs would find the old and the new checkpoint"
    )


def test_a_directory_is_not_replaced(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.create(NEW_MODEL).put("out.safetensors/x.txt", b"mine")
    error = refuse(matrices, f"{NEW_URL}/out.safetensors", force=True)
    assert error.message == f"{NEW_URL}/out.safetensors is a directory"


@pytest.mark.parametrize("source", ["", "@main", "/model.safetensors"])
def test_the_input_is_not_replaced(source: str, xet_hub: HubServer, matrices: Path) -> None:
    convert(matrices, NEW_URL)
    with pytest.raises(OutputError, match="is the input itself"):
        convert(NEW_URL + source, NEW_URL, dtype="bf16", force=True)
    assert len(xet_hub.repositories[NEW_MODEL].messages) == 2


def test_parts_of_the_input_are_not_deleted(xet_hub: HubServer, matrices: Path) -> None:
    convert(matrices, NEW_URL, max_shard_size="2MB")
    with pytest.raises(OutputError, match="is an input, which the output would replace"):
        convert(NEW_URL, NEW_URL, force=True)
    assert len(xet_hub.repositories[NEW_MODEL].messages) == 2


def test_a_change_during_the_run_is_not_overwritten(xet_hub: HubServer, matrices: Path) -> None:
    repository = xet_hub.create(NEW_MODEL)
    change = Call(lambda: repository.put("model.safetensors", b"theirs"))
    xet_hub.inject(change, "GET", path="xet-write-token", times=1)
    error = refuse(matrices)
    assert error.message == (
        f"{NEW_URL} cannot be written: the model {NEW_MODEL} was changed during the run"
    )
    assert repository["model.safetensors"] == b"theirs"


def test_nothing_is_committed_after_an_error_of_the_commit(
    xet_hub: HubServer, matrices: Path
) -> None:
    fault = xet_hub.inject(Answer(500), "POST", path="/commit/")
    assert "status 500" in refuse(matrices).message
    assert xet_hub.repositories[NEW_MODEL].tree() == {}
    xet_hub.faults.remove(fault)
    convert(matrices, NEW_URL)
    assert "model.safetensors" in xet_hub.repositories[NEW_MODEL].tree()


def test_a_commit_whose_answer_is_lost_is_made_once(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.inject(LoseAnswer(), "POST", path="/commit/", times=1)
    convert(matrices, NEW_URL)
    assert len(xet_hub.repositories[NEW_MODEL].messages) == 2


@pytest.mark.parametrize("threads", [1, 4])
def test_nothing_is_committed_after_an_error_of_the_conversion(
    threads: int, xet_hub: HubServer, tmp_path: Path
) -> None:
    arrays = {f"a{number:02d}.weight": np.ones((512, 512), np.float32) for number in range(20)}
    arrays["a10.weight"][511, 511] = np.inf
    save_file(arrays, tmp_path / "bad.safetensors")
    error = refuse(
        tmp_path / "bad.safetensors",
        f"{NEW_URL}/out.gguf",
        quant="Q4_K",
        names="keep",
        threads=threads,
        memory="4MB",
    )
    assert "a10.weight" in error.message
    assert xet_hub.repositories[NEW_MODEL].tree() == {}


@pytest.mark.parametrize("threads", [1, 4])
def test_nothing_is_committed_after_an_interruption(
    threads: int, xet_hub: HubServer, matrices: Path
) -> None:
    def stop(nbytes: int) -> None:
        raise KeyboardInterrupt(nbytes)

    with pytest.raises(KeyboardInterrupt):
        convert(matrices, NEW_URL, progress=stop, threads=threads)
    assert xet_hub.repositories[NEW_MODEL].tree() == {}


@pytest.mark.usefixtures("xet_hub")
def test_a_token_is_needed(matrices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    error = refuse(matrices)
    assert error.message == f"{NEW_URL} cannot be written without a token of the Hugging Face Hub"
    assert error.hint == LOGIN


@pytest.mark.usefixtures("xet_hub")
def test_a_token_is_not_used_if_it_is_unwanted(
    matrices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    error = refuse(matrices)
    assert error.hint == "remove --anonymous, or unset HF_HUB_DISABLE_IMPLICIT_TOKEN"


@pytest.mark.parametrize("exists", [False, True])
def test_a_token_for_reading_cannot_write(
    exists: bool,  # a parameter of the test
    xet_hub: HubServer,
    matrices: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if exists:
        xet_hub.create(NEW_MODEL)
    monkeypatch.setenv("HF_TOKEN", READER)
    error = refuse(matrices)
    assert error.message == f"{NEW_URL}: the token may not write to the model {NEW_MODEL}"
    assert error.hint == "check the name, and use a token with the permission to write"
    assert READER not in str(error)


@pytest.mark.usefixtures("xet_hub")
def test_a_token_that_the_hub_does_not_know(
    matrices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    error = refuse(matrices)
    assert "the Hugging Face Hub did not accept the token" in error.message
    assert "hf_wrong" not in str(error)


def test_a_token_that_ends_during_the_run_is_an_error_that_does_not_show_it(
    xet_hub: HubServer, matrices: Path
) -> None:
    xet_hub.inject(Answer(401), "GET", path="xet-write-token", nth=range(1, 100))
    error = refuse(matrices)
    assert isinstance(error, OutputError)
    assert "hf_" not in str(error)


def test_a_gated_model_names_its_page(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.create(NEW_MODEL)
    xet_hub.inject(Answer(403, "GatedRepo"), "GET", path="xet-write-token")
    error = refuse(matrices)
    assert (
        error.message == f"{NEW_URL}: the model {NEW_MODEL} requires that you accept its conditions"
    )
    assert error.hint == f"accept them on its page, {xet_hub.url}/{NEW_MODEL}"


def test_a_refusal_of_the_hub_is_quoted(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.inject(Answer(400), "POST", path="/commit/")
    error = refuse(matrices)
    assert error.message == (
        f"{NEW_URL}: the Hugging Face Hub refused the commit: POST fails on purpose"
    )


def test_a_private_model_that_the_token_may_not_read(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.create(NEW_MODEL, private=True)
    xet_hub.inject(Answer(404, "RepoNotFound"), "GET", path="/revision/")
    assert "exists, but the token may not read it" in refuse(matrices).message


def test_a_branch_that_does_not_exist(xet_hub: HubServer, matrices: Path) -> None:
    xet_hub.create(NEW_MODEL)
    error = refuse(matrices, f"{NEW_URL}@nope")
    assert error.message == f"{NEW_URL}@nope: the model {NEW_MODEL} has no revision `nope`"
    assert error.hint == "create the branch first, or leave out the revision"


def test_a_commit_cannot_be_changed(xet_hub: HubServer, matrices: Path) -> None:
    commit = xet_hub.create(NEW_MODEL).refs["main"]
    assert "is a commit, which cannot be changed" in refuse(matrices, f"{NEW_URL}@{commit}").message


@pytest.mark.usefixtures("xet_hub")
def test_a_pull_request_is_for_the_main_branch(matrices: Path) -> None:
    error = refuse(matrices, f"{NEW_URL}@v1", pr=True)
    assert error.message == "a pull request is for the main branch, and not for `v1`"


@pytest.mark.usefixtures("xet_hub")
def test_nothing_is_written_offline(matrices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE allows no requests" in refuse(matrices).message


@pytest.mark.parametrize("option", ["private", "pr"])
def test_options_of_repositories_do_not_apply_to_paths(
    option: str, matrices: Path, tmp_path: Path
) -> None:
    error = refuse(matrices, f"{tmp_path}/out", **{option: True})
    assert isinstance(error, ConversionError)
    assert error.message.startswith(f"--{option} ({option} in Python) does not apply to")


@pytest.mark.usefixtures("xet_hub")
def test_gguf_needs_the_name_of_a_file(matrices: Path) -> None:
    error = refuse(matrices, NEW_URL, to="gguf")
    assert error.hint == f"write to {NEW_URL}/model.gguf"


def test_shards_are_not_written_to_the_hub(xet_hub: HubServer, tiny_llama: Path) -> None:
    with pytest.raises(OutputError, match="shards cannot be written") as caught:
        shard(tiny_llama, NEW_URL, tp=2)
    assert "local directory" in caught.value.hint
    assert xet_hub.repositories == {}


def test_the_extra_that_is_not_installed_is_named(
    xet_hub: HubServer, matrices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hf_xet", None)
    error = refuse(matrices)
    assert error.message == f"writing {NEW_URL} needs the package hf_xet, which is not installed"
    assert error.hint == "install it: `pip install 'hf-xet>=1.8' 'obstore>=0.12'`"
    assert xet_hub.repositories == {}


def test_a_dry_run_makes_nothing(xet_hub: HubServer, matrices: Path) -> None:
    planned = convert(matrices, NEW_URL, dry_run=True)
    planned.outcome.refuse(force=False)
    assert planned.kept_bytes == 0
    assert xet_hub.repositories == {}


# After a fault of the Hub, or kill -9, at any moment: one whole commit, or none and continued.


# Files are sent in pieces of at most so many bytes.
PIECE = 64 << 20
# By name: the output, and options.
FAULT_OUTPUTS = {
    "a file": ("/out.safetensors", {}),
    "a directory": ("", {"max_shard_size": "2MB"}),
}


@pytest.fixture(scope="module")
def large(scratch: Path) -> Path:
    """A model of 300 MB, which is uploaded in several pieces."""
    return random_model(scratch / "large", 18, 4096)


def files_of(hub: HubServer, model: str) -> dict[str, bytes]:
    """Return the files of a model that may not exist."""
    repository = hub.repositories.get(model)
    return {} if repository is None else {path: repository[path] for path in repository.tree()}


@pytest.mark.parametrize(
    ("fault", "kind", "moments"),
    [
        *((fault, "a directory", 1) for fault in WRITE_FAULTS if fault not in {"401", "stall"}),
        *(
            pytest.param(*row, 10, marks=pytest.mark.long)
            for row in product(WRITE_FAULTS, FAULT_OUTPUTS)
        ),
    ],
)
def test_a_fault_at_any_moment_of_writing_the_hub_spoils_nothing(
    fault: str,
    kind: str,
    moments: int,
    xet_hub: HubServer,
    matrices: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hasten(monkeypatch)
    action, is_passing, _ = WRITE_FAULTS[fault]
    path, options = FAULT_OUTPUTS[kind]
    convert(matrices, f"hf://org/expected{path}", **options)
    whole, requests = files_of(xet_hub, "org/expected"), xet_hub.requests
    failed = 0
    for place, nth in enumerate(random_moments(f"{fault} {kind}", moments, requests)):
        model = f"org/model-{place}"
        xet_hub.inject(action, nth=nth, times=1)
        error = attempt(matrices, f"hf://{model}{path}", **options)
        settle(xet_hub)
        if error is not None:
            assert not is_passing, error
            assert error.hint
            assert files_of(xet_hub, model) == {}
            failed += 1
            convert(matrices, f"hf://{model}{path}", **options)
        assert files_of(xet_hub, model) == whole
        assert len(xet_hub.repositories[model].messages) == 2
    # A request whose redirect leads nowhere is repeated.
    assert failed >= (0 if is_passing or fault == "redirect" else moments // 3)


@pytest.mark.parametrize("size", usual(["small"], ["small", "large"]))
def test_what_has_arrived_is_not_sent_again(
    size: str, xet_hub: HubServer, scratch: Path, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue("matrices" if size == "small" else "large")
    fault = xet_hub.inject(Answer(403), path="/commit/")
    with fresh_store(xet_hub, scratch):
        before = TRAFFIC.counts
        with pytest.raises(WeightctlError, match="may not write"):
            convert(source, "hf://org/model")
        xet_hub.faults.remove(fault)
        first, again = TRAFFIC.counts.since(before).bytes_sent, TRAFFIC.counts
        convert(source, "hf://org/model")
    assert TRAFFIC.counts.since(again).bytes_sent < first / 20


@pytest.mark.long
def test_kill_9_at_random_moments_of_sending_to_the_hub_is_continued(
    xet_hub: HubServer, large: Path, scratch: Path
) -> None:
    moments = 12
    options = ("--max-shard-size", "100MB", "-q", "-j", "1")
    chance = random.Random("kill")
    stopped = 0
    with strikes(scratch, limit=60) as struck:
        with fresh_store(xet_hub, scratch):
            span = struck.run("convert", large, "hf://org/whole", *options)
            assert span.code == 0, span.errors
            whole, total = files_of(xet_hub, "org/whole"), bytes_arrived(xet_hub)
        for moment in range(moments):
            model = f"org/model-{moment}"
            seconds = span.seconds * (moment + chance.random()) / moments
            with fresh_store(xet_hub, scratch):
                ended = struck.run(
                    "convert", large, f"hf://{model}", *options,
                    number=signal.SIGKILL, seconds=seconds,
                )  # fmt: skip
                assert ended.code in (0, -signal.SIGKILL), ended.errors
                found = files_of(xet_hub, model)
                assert found in ({}, whole)
                if found:
                    continue
                stopped += 1
                arrived, before = bytes_arrived(xet_hub), TRAFFIC.counts
                convert(large, f"hf://{model}", max_shard_size="100MB", threads=1)
                sent = TRAFFIC.counts.since(before).bytes_sent
                # Pieces that arrived in the last moment are not noted yet.
                assert sent < total - arrived + 2 * PIECE
                assert files_of(xet_hub, model) == whole
    assert stopped


@contextmanager
def fresh_store(hub: HubServer, scratch: Path) -> Generator[None, None, None]:
    """Have the Hub store files where it has none, because it stores each piece once."""
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        hub.xet = XetStore(directory)
        yield


def bytes_arrived(hub: HubServer) -> int:
    return 0 if hub.xet is None else hub.xet.bytes_stored
