"""Outputs that the Hugging Face Hub refuses: an error says why, and nothing is committed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from hub_fixtures import NEW_MODEL, NEW_URL
from servers.base import Answer, Call, LoseAnswer
from servers.hub import READER
from weightctl import convert, shard
from weightctl.errors import ConversionError, OutputError, WeightctlError

if TYPE_CHECKING:
    from pathlib import Path

    from servers.hub import HubServer

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
    monkeypatch.delitem(sys.modules, "weightctl.storage.remote.xet", raising=False)
    monkeypatch.setitem(sys.modules, "hf_xet", None)
    error = refuse(matrices)
    assert error.message == f"writing {NEW_URL} needs the package hf_xet, which is not installed"
    assert error.hint == "install it: `pip install 'weightctl[hub]'`"
    assert xet_hub.repositories == {}


def test_a_dry_run_makes_nothing(xet_hub: HubServer, matrices: Path) -> None:
    planned = convert(matrices, NEW_URL, dry_run=True)
    planned.outcome.refuse(force=False)
    assert planned.kept_bytes == 0
    assert xet_hub.repositories == {}
