"""Behaviour where existing tools have a known mistake; each test names the tool."""

from __future__ import annotations

import json
import os
import re
import signal
import zipfile
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from gguf import GGUFReader

import tiny
from arrays import stored, weights_of
from build import Gguf, safetensors, safetensors_of
from each import each
from llama_cpp import generate
from outcomes import EACH_KIND, begun, random_model, random_weights, standing, untouched
from weightctl import Plan, WeightData, Weights, open_weights
from weightctl.errors import FormatError, OutputError
from weightctl.formats import FORMATS
from weightctl.plan.arrangement import split
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed
    from outcomes import Kind

    Run = Callable[..., Completed]

# Files that are not what their names say, with mistakes of the safetensors package.


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


# Types that replace a requested type, with mistakes of llama-quantize.


@pytest.fixture(scope="module")
def odd_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model most of whose rows have 576 values, as those of SmolLM2 have."""
    sizes = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    path = tmp_path_factory.mktemp("odd-rows") / "model.gguf"
    return tiny.write(path, "llama", num_hidden_layers=2, **sizes)


@pytest.fixture(scope="module")
def substituted(
    weightctl: Run, odd_rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Completed, dict[str, tuple[str, int]]]:
    """What is said of the model in Q4_K, and each tensor's type and size as gguf-py reads them."""
    out = tmp_path_factory.mktemp("q4_k") / "q4_k.gguf"
    done = weightctl("convert", odd_rows, out, "--quant", "Q4_K")
    assert done.returncode == 0, done.stderr
    found = {
        tensor.name: (tensor.tensor_type.name, int(tensor.n_elements))
        for tensor in GGUFReader(out).tensors
    }
    out.unlink()
    return done, found


# llama-quantize: warns of each tensor in passing; users find most of a "Q4_K_M" to be no K type.


def test_the_summary_counts_the_substitutes_and_their_share(
    substituted: tuple[Completed, dict[str, tuple[str, int]]],
) -> None:
    done, found = substituted
    others = {name: size for name, (kind, size) in found.items() if kind not in {"Q4_K", "F32"}}
    share = 100 * sum(others.values()) / sum(size for _, size in found.values())
    assert len(others) == 14
    assert f"14 Q5_0 instead of Q4_K ({share:.1f} % of the parameters)" in done.stdout


def test_json_names_each_substitute(
    weightctl: Run, odd_rows: Path, substituted: tuple[Completed, dict[str, tuple[str, int]]]
) -> None:
    done = weightctl(
        *("convert", odd_rows, "out.gguf", "--quant", "Q4_K"),
        *("--dry-run", "--json"),
    )
    listed = json.loads(done.stdout)["tensors"]
    assert {each["name"]: each["to"] for each in listed} == {
        name: kind for name, (kind, _) in substituted[1].items()
    }
    assert {each["name"] for each in listed if each["instead_of"] == "Q4_K"} == {
        name for name, (kind, _) in substituted[1].items() if kind == "Q5_0"
    }


def test_substitutes_can_be_refused(weightctl: Run, odd_rows: Path, tmp_path: Path) -> None:
    done = weightctl(
        *("convert", odd_rows, tmp_path / "out.gguf", "--quant", "Q4_K"),
        "--no-fallback",
    )
    assert done.returncode == 2
    assert re.search(r"error: 14 .*tensors cannot have the requested type", done.stderr)
    assert ", 576, is not a multiple of the Q4_K block size" in done.stderr
    assert os.listdir(tmp_path) == []


# Dtypes that NumPy does not have, with mistakes of safetensors.numpy.

SMALL: dict[str, Any] = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("how", [WeightData.to_numpy, np.asarray], ids=["to_numpy", "asarray"])
def test_numpy_gets_the_numbers_of_small_floats(
    tmp_path: Path, name: str, how: Callable[[WeightData], np.ndarray[Any, Any]]
) -> None:
    # safetensors.numpy: fails on bf16 and fp8.
    expected = np.array([[0.5, 1, 2], [4, 8, 16]], SMALL[name])
    content = safetensors_of({"a": (name, (2, 3), expected.tobytes())})
    (tmp_path / "a.safetensors").write_bytes(content)
    found = how(open_weights(tmp_path / "a.safetensors").a.data())
    assert found.dtype == expected.dtype
    assert found.astype(np.float32).tolist() == [[0.5, 1, 2], [4, 8, 16]]


# Outputs that are complete or absent, with mistakes of llama.cpp's tools.


@EACH_KIND
def test_a_kill_leaves_nothing_at_the_final_name(kind: Kind, tmp_path: Path) -> None:
    # llama.cpp's tools: a file at the final name, with zeros where its header belongs.
    model = random_model(tmp_path / "model", 6, 2048)
    place = tmp_path / "place"
    place.mkdir()
    process = begun(place, model, f"{place}/{kind.name}", *kind.options)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert standing(place) == {}


def test_an_error_leaves_nothing_at_the_final_name(weightctl: Run, tmp_path: Path) -> None:
    # llama.cpp's tools: what was written until then, with zeros where its header belongs.
    rows = np.ones((1024, 1024), np.float32)
    rows[-1, -1] = np.nan
    stored(tmp_path / "in.safetensors", weight=rows)
    done = weightctl(
        "convert", tmp_path / "in.safetensors", tmp_path / "out.gguf", "--quant", "Q8_0"
    )
    assert done.returncode == 2
    assert os.listdir(tmp_path) == ["in.safetensors"]


# What is asked for, and what is said of it.
REFUSALS = {
    "no such format": (["--to", "onnx"], "`onnx` is not a supported format"),
    "no such type": (["--dtype", "nonsense"], "`nonsense` is not a type"),
    "two types": (["--dtype", "f16", "--quant", "Q8_0"], "both given"),
    "a type it cannot make": (["--quant", "Q8_K"], "cannot quantize to Q8_K"),
    "a type the format lacks": (["--dtype", "f8_e4m3"], "gguf cannot store F8_E4M3"),
    "blocks that do not fit": (
        ["--quant", "Q4_K", "--no-fallback"],
        "is not a multiple of the Q4_K block size",
    ),
    "a second loss": (["--quant", "Q5_0"], "already quantized"),
    "a rule for nothing": (["--tensor-type", "nothing=Q8_0"], "no tensor's name matches `nothing`"),
    "a choice of nothing": (["--include", "nothing"], "no tensor matches `nothing`"),
    "metadata that is not there": (["--unset", "nothing"], "no metadata key `nothing`"),
    "metadata of another type": (["--set", "n:u32=many"], "`many` is not a valid u32"),
    "no alignment": (["--align", "3"], "an alignment of 3 bytes is not supported"),
    "too little memory": (["--mem", "1kB"], "is too little"),
    "no size": (["--max-shard-size", "some"], "`some` is not a size"),
    "a report over the output": (["--report", "out.gguf"], "is the same as the output"),
    "a report nowhere": (["--report", "nowhere/report.json"], "does not exist"),
    "another format than the suffix": (["--to", "safetensors"], "has the suffix of gguf"),
    "a format that is not there": (
        ["--from", "safetensors"],
        ("not a safetensors file: it is gguf"),
    ),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_good_output_survives_a_predictable_refusal(
    weightctl: Run, tmp_path: Path, why: str
) -> None:
    # llama.cpp's tools: destroy the output before they look at what they are asked for.
    arrays = {"a.weight": np.ones((4, 96), np.float32), "b.weight": np.ones((4, 256), np.float32)}
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    save(Plan.copy(weights_of(arrays), "gguf"), source)
    if why == "a second loss":
        assert weightctl("convert", source, tmp_path / "q.gguf", "--quant", "Q8_0").returncode == 0
        source = tmp_path / "q.gguf"
    save(Plan.copy(random_weights(1, 8), "gguf"), out)
    options, says = REFUSALS[why]
    with untouched(tmp_path):
        done = weightctl("convert", source, out, "--force", *options, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr


def test_a_good_output_survives_an_input_that_cannot_be_read(
    weightctl: Run, tmp_path: Path
) -> None:
    # llama.cpp's tools: destroy the output before they look at what they are asked for.
    out = tmp_path / "out.gguf"
    save(Plan.copy(random_weights(1, 8), "gguf"), out)
    (tmp_path / "damaged.gguf").write_bytes(out.read_bytes()[:-100])
    (tmp_path / "text.gguf").write_text("no checkpoint")
    with untouched(tmp_path):
        for name in ("damaged.gguf", "text.gguf", "none.gguf", "out.gguf"):
            assert weightctl("convert", tmp_path / name, out, "--force").returncode == 2


def test_a_full_disk_and_a_missing_directory_give_different_messages(tmp_path: Path) -> None:
    # llama.cpp's tools: one message for both.
    plan = Plan.copy(random_weights(1), "gguf")
    huge = plan.items[0].info._replace(shape=(1 << 40, 1024))
    room = plan.with_items((plan.items[0].__class__(huge, huge),))
    with pytest.raises(OutputError, match=r"are needed, but .* free on its disk") as full:
        save(room, tmp_path / "out.gguf")
    with pytest.raises(OutputError, match=r"the directory .* does not exist") as missing:
        save(plan, tmp_path / "nowhere" / "out.gguf")
    assert full.value.hint == "free some space, or choose another disk"
    assert missing.value.hint == "create the directory first"


# Splitting and merging, with mistakes of existing tools; each test names the tool.

EACH_FORMAT = pytest.mark.parametrize("name", FORMATS)


def divided(weights: Weights, directory: Path, name: str) -> list[Path]:
    """Write each tensor into a file of its own; return the files, without an index."""
    directory.mkdir()
    save(split(Plan.copy(weights, name), 1), directory / f"model.{name}")
    return sorted(directory.glob("*-of-*"))


@EACH_FORMAT
@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("left", [0, 10, 200, -1])
def test_a_set_with_a_part_that_is_cut_off_is_not_merged(
    tmp_path: Path, name: str, part: int, left: int
) -> None:
    # llama-gguf-split --merge: exit 0, and an output of full size with garbage in it.
    parts = divided(random_weights(3, 8), tmp_path / "in", name)
    whole = parts[part].read_bytes()
    parts[part].write_bytes(whole[:left])
    with pytest.raises(FormatError) as caught:
        save(Plan.copy(open_weights(parts[0]), name), tmp_path / f"out.{name}")
    assert caught.value.path == str(parts[part])
    assert os.listdir(tmp_path) == ["in"]


def test_a_set_with_a_part_that_is_cut_off_ends_the_command_with_2(
    weightctl: Run, tmp_path: Path
) -> None:
    # llama-gguf-split --merge: exit 0.
    *_, last = parts = divided(random_weights(3, 8), tmp_path / "in", "gguf")
    os.truncate(last, last.stat().st_size - 1000)
    done = weightctl("convert", parts[0], tmp_path / "out.gguf")
    assert done.returncode == 2
    assert f"{last}, byte" in done.stderr
    assert "ends 1000 bytes after the end of the file: the file has" in done.stderr
    assert "check that the download is complete" in done.stderr
    assert os.listdir(tmp_path) == ["in"]


@EACH_FORMAT
def test_split_and_merged_is_the_file_that_was_there(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    # llama-gguf-split: what is merged still says `split.no`, `split.count`, `split.tensors.count`.
    suffix = FORMATS[name].suffix
    whole, again = tmp_path / f"whole{suffix}", tmp_path / f"again{suffix}"
    parts = tmp_path / "parts"
    parts.mkdir()
    assert weightctl("convert", tiny_llama, whole).returncode == 0
    divided = weightctl("convert", whole, parts / f"a{suffix}", "--max-shard-size", "1MB")
    assert divided.returncode == 0
    assert len(list(parts.glob(f"*{suffix}"))) == 5
    assert weightctl("convert", parts, again).returncode == 0
    assert again.read_bytes() == whole.read_bytes()
    assert not [key for key in open_weights(again).metadata if key.startswith("split.")]


@each("options", [("--dtype", "f16"), ("--quant", "Q8_0")])
def test_what_is_split_and_quantized_with_another_alignment_runs_in_llama_cpp(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    # llama-gguf-split and llama-quantize: exit 0, and llama.cpp does not load the output.
    whole, parts = tmp_path / "whole.gguf", tmp_path / "parts"
    parts.mkdir()
    assert weightctl("convert", tiny_llama, whole, *options).returncode == 0
    done = weightctl(
        *("convert", tiny_llama, parts / "model.gguf", "--align", "64"),
        *("--max-shard-size", "1MB", *options),
    )
    assert done.returncode == 0, done.stderr
    first, *others = sorted(parts.glob("*.gguf"))
    assert len(others) > 1
    assert GGUFReader(first).alignment == 64
    texts = [generate(path, "The harbour", 4, tmp_path).text for path in (first, whole)]
    assert texts[0] == texts[1] != ""


# Token ids outside of the vocabulary, as in a published GGUF; transformers crashes on them.

PADDING = "tokenizer.ggml.padding_token_id"


@pytest.fixture
def without_padding(tmp_path: Path) -> Path:
    """A vocabulary whose padding token is -1, written as if it had no sign."""
    path = tmp_path / "in.gguf"
    values = {
        "general.architecture": ("string", "llama"),
        "tokenizer.ggml.tokens": ("array[string]", ["a", "b", "c"]),
        "tokenizer.ggml.bos_token_id": ("u32", 0),
        "tokenizer.ggml.eos_token_id": ("u32", 2),
        PADDING: ("u32", 4294967295),
    }
    path.write_bytes(Gguf().file([], values))
    return path


def test_a_note_says_which_token_is_none(weightctl: Run, without_padding: Path) -> None:
    # A published GGUF has such ids, and transformers crashes on it.
    note = (
        f"`{PADDING}` is 4294967295, but the vocabulary has only 3 tokens; to remove it, "
        f"use --unset {PADDING} (unset in Python)"
    )
    assert open_weights(without_padding).header.notes == (note,)
    for command in (["ls"], ["convert", "--dry-run"]):
        out = [without_padding.with_name("out.gguf")] if "convert" in command else []
        done = weightctl(*command, without_padding, *out)
        assert done.returncode == 0
        assert note in done.stderr


def test_what_the_note_says_leaves_the_token_out(
    weightctl: Run, without_padding: Path, tmp_path: Path
) -> None:
    # A published GGUF has such ids, and transformers crashes on it.
    done = weightctl("convert", without_padding, tmp_path / "out.gguf", "--unset", PADDING)
    assert done.returncode == 0
    out = open_weights(tmp_path / "out.gguf")
    assert PADDING not in out.metadata
    assert out.metadata["tokenizer.ggml.eos_token_id"] == ("u32", 2)
    assert out.header.notes == ()


def test_tokens_that_are_there_are_not_noted(tmp_path: Path) -> None:
    values = {
        "tokenizer.ggml.tokens": ("array[string]", ["a", "b", "c"]),
        "tokenizer.ggml.eos_token_id": ("u32", 2),
        "tokenizer.ggml.add_bos_token": ("bool", True),
    }
    (tmp_path / "in.gguf").write_bytes(Gguf().file([], values))
    assert open_weights(tmp_path / "in.gguf").header.notes == ()
