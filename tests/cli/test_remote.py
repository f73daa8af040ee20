"""Checkpoints that are not on this machine: not supported yet, and what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

URLS = {
    "hf://org/name": "`hf download org/name --local-dir name`",
    "s3://bucket/models/name": "`aws s3 cp --recursive s3://bucket/models/name name`",
    "gs://bucket/name/": "`gcloud storage cp --recursive gs://bucket/name/ name`",
    "https://host/name.gguf": "`curl -LO https://host/name.gguf`",
    "HTTP://host/name.gguf": "`curl -LO HTTP://host/name.gguf`",
}
COMMANDS = ["ls {}", "verify {}", "convert {} out.gguf", "diff {} other", "shard {} out --tp 2"]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_not_supported_yet_and_the_hint_downloads_it(url: str, weightctl: Run) -> None:
    done = weightctl("ls", url)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {url}: remote checkpoints are not supported yet\n"
        f"hint: download it first: {URLS[url]}\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_url_in_the_same_words(
    command: str, weightctl: Run, tmp_path: Path
) -> None:
    done = weightctl(*command.format("hf://org/name").split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: hf://org/name: remote checkpoints are not supported yet")


@pytest.mark.parametrize("command", [*COMMANDS, "{}"])
def test_the_name_of_a_repository_that_is_not_a_path_gets_the_download(
    command: str, weightctl: Run, tmp_path: Path
) -> None:
    done = weightctl(*command.format("org/name-1.5").split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error: org/name-1.5: No such file or directory\n"
        "hint: check the path; if it is a model on Hugging Face, download it first, because remote "
        "checkpoints are not supported yet: `hf download org/name-1.5 --local-dir name-1.5`\n"
    )


def test_a_missing_file_in_a_directory_that_exists_is_no_repository(
    weightctl: Run, tmp_path: Path
) -> None:
    (tmp_path / "org").mkdir()
    done = weightctl("ls", "org/name", cwd=tmp_path)
    assert done.stderr.splitlines()[1] == "hint: check the path"
