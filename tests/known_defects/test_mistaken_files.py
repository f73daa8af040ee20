"""Files that are not what their names say, with mistakes of the safetensors package."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from build import safetensors
from weightctl import open_weights
from weightctl.errors import FormatError
from weightctl.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes/readme.txt", "no weights")


LFS = """version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 268435456
"""
WRONG: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "LFS pointer": (lambda path: path.write_text(LFS), "a Git LFS pointer", "git lfs pull"),
    "HTML page": (
        *(lambda path: path.write_text("<!DOCTYPE html><html>", "utf-8"), "a web page"),
        (
            "the server sent an error page instead of the file; check whether the download "
            "needs a login"
        ),
    ),
    "HTML behind blanks": (
        *(lambda path: path.write_text("\n\n <html>Sign in</html>"), "a web page"),
        "it is a web page",
    ),
    "zip": (
        zipped,
        "it is a zip file without a checkpoint; it contains notes/readme.txt",
        "formats: safetensors",
    ),
    "nothing": (lambda path: path.write_bytes(b""), "empty", "download it again"),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_something_else_is_called_what_it_is(
    weightctl: Run, tmp_path: Path, name: str, what: str
) -> None:
    # safetensors: "header too large" for a Git LFS pointer, an HTML page and a zip alike.
    make, message, hint = WRONG[what]
    path = tmp_path / f"model.{name}"
    make(path)
    done = weightctl("ls", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert hint in done.stderr


ENTRY = '{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
TWICE = {
    "name": ("a", f'{{"a":{ENTRY},"a":{ENTRY}}}'),
    "name in another spelling": ("a", f'{{"a":{ENTRY},"\\u0061":{ENTRY}}}'),
    "dtype": ("dtype", f'{{"a":{ENTRY[:-1]},"dtype":"I8"}}}}'),
    "metadata": ("k", f'{{"__metadata__":{{"k":"1","k":"2"}},"a":{ENTRY}}}'),
    "all metadata": (
        "__metadata__", f'{{"__metadata__":{{"k":"1"}},"__metadata__":{{}},"a":{ENTRY}}}'
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TWICE)
def test_a_header_with_a_key_that_stands_twice_is_refused(tmp_path: Path, what: str) -> None:
    # safetensors: opens it, and one of the two is what is there.
    twice, header = TWICE[what]
    (tmp_path / "a.safetensors").write_bytes(safetensors(header.encode(), b"1234"))
    with pytest.raises(FormatError, match=f"`{twice}` appears twice"):
        open_weights(tmp_path / "a.safetensors")
