"""weightctl on Windows, by wine: the same output and the same bytes as on this system.

`.ci/windows` installs wine and a Python for Windows, and sets `WEIGHTCTL_WINDOWS` to the command
that starts that Python. Without it, these tests are skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest

from commands import ROOT, run_command
from each import each
from outcomes import random_model
from weightctl import Plan, open_weights
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

PYTHON = shlex.split(os.environ.get("WEIGHTCTL_WINDOWS", ""))
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON, reason=".ci/windows runs these, with wine"),
]
# What the two systems write otherwise: times, rates, and the time that a step takes.
MEASURED = re.compile(r"^[\d.]+ s(, .*/s)?$|^about .*$", re.MULTILINE)
STEP = re.compile(rb"(?<=\"modified\": \d{17})\d\d")
# Seconds between two looks, and those after which a process is taken to hang.
_MOMENT, _LONGEST = 0.01, 300


def there(path: Path | str) -> str:
    """Return a path of this system as one of Windows, where its root is the drive Z."""
    return "Z:" + str(path).replace("/", "\\")


COMMAND = ("-m", "weightctl")


def start_there(
    *words: str, command: tuple[str, ...] = COMMAND, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PYTHON, *command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8", cwd=ROOT, env=os.environ | environment,
    )  # fmt: skip


def finish(started: subprocess.Popen[str], code: int = 0) -> str:
    """Return what a process prints until it ends, stdout and stderr together."""
    try:
        out, errors = started.communicate(timeout=_LONGEST)
    except subprocess.TimeoutExpired:
        started.kill()
        raise
    assert started.returncode == code, out + errors
    return out + errors


def run_there(
    *words: str, code: int = 0, command: tuple[str, ...] = COMMAND, **environment: str
) -> str:
    """Return what a command prints on Windows, stdout and stderr together."""
    return finish(start_there(*words, command=command, **environment), code)


def run_here(*words: str | Path) -> str:
    done = run_command(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plain(output: str) -> str:
    """Return output without what is measured, and with the paths of this system."""
    return MEASURED.sub(
        "", output.replace("\r", "").replace("\\\\", "/").replace("Z:\\", "/").replace("\\", "/")
    )


def contents(path: Path) -> dict[str, bytes]:
    files = [each for each in path.rglob("*") if each.is_file()]
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def assert_same_files(one: Path, other: Path) -> None:
    here, found = contents(one), contents(other)
    assert here.keys() == found.keys()
    # Windows counts the times of files in steps of 100 ns.
    unlike = [name for name in here if STEP.sub(b"00", here[name]) != STEP.sub(b"00", found[name])]
    assert unlike == []


MODEL = "fixtures/tiny-llama"


@each(
    "words",
    [
        ("ls", MODEL), ("ls", "-l", MODEL), ("ls", "--scan", "fixtures/attack.pt"),
        ("ls", "--scan", MODEL), ("ls", "--json", MODEL), ("stat", MODEL),
        ("diff", MODEL, "fixtures/training.pt"), ("show", MODEL, "model.norm.weight"),
    ],
)  # fmt: skip
def test_a_command_prints_what_it_prints_here(words: tuple[str, ...]) -> None:
    here = run_command(*words)
    found = run_there(*words, code=here.returncode)
    assert plain(found) == plain(here.stdout + here.stderr)


def test_check_finds_nothing_in_a_good_model() -> None:
    # safetensors is not installed there, and check says so.
    assert "no findings" in run_there("check", MODEL)


@each("options", [("--quant", "Q4_K_M"), ("--quant", "Q8_0"), ("--dtype", "f16"), ()])
def test_a_gguf_file_has_the_same_bytes(options: tuple[str, ...], tmp_path: Path) -> None:
    run_here("convert", MODEL, str(tmp_path / "here.gguf"), *options)
    run_there("convert", MODEL, there(tmp_path / "there.gguf"), *options)
    assert (tmp_path / "here.gguf").read_bytes() == (tmp_path / "there.gguf").read_bytes()


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "model.gguf"
    run_here("convert", MODEL, str(path), "--quant", "Q4_K_M")
    return path


@each(
    "words",
    [
        ("convert", "{model}", "{out}", "--dtype", "bf16"), ("shard", MODEL, "{out}", "--tp", "2"),
        ("convert", "{model}", "{out}.safetensors", "--include", "blk.0.*"),
    ],
)  # fmt: skip
def test_directories_and_files_have_the_same_bytes(
    words: tuple[str, ...], quantized: Path, tmp_path: Path
) -> None:
    for name, place in (("here", str), ("there", there)):
        (tmp_path / name).mkdir()
        out = place(tmp_path / name / "out")
        given = [each.format(model=place(quantized), out=out) for each in words]
        if name == "here":
            run_here(*given)
        else:
            run_there(*given)
    assert_same_files(tmp_path / "here", tmp_path / "there")


def test_a_patch_is_made_and_applied(quantized: Path, tmp_path: Path) -> None:
    edited, patch, restored = (tmp_path / name for name in ("edited.gguf", "p.patch", "r.gguf"))
    edited.write_bytes(quantized.read_bytes())
    run_there("edit", there(edited), "--set", "general.name=another")
    assert open_weights(edited).metadata["general.name"].content == "another"
    run_there("diff", there(quantized), there(edited), "--patch", there(patch))
    run_there("apply", there(quantized), there(patch), there(restored))
    assert restored.read_bytes() == edited.read_bytes()


# Without kernels, the conversion takes seconds.
SLOW = {"WEIGHTCTL_KERNELS": "off"}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return random_model(tmp_path / "large", 4, 4096)


def slow_conversion(large: Path, out: Path) -> tuple[str, ...]:
    return ("convert", there(large), there(out), "--quant", "Q5_K", "-j", "1", "--mem", "4MB")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + _LONGEST
    while not condition():
        assert process.poll() is None, process.communicate()
        if time.monotonic() > end:
            process.kill()
            pytest.fail("it hangs")
        time.sleep(_MOMENT)


def test_a_killed_conversion_is_continued(large: Path, tmp_path: Path) -> None:
    out, expected = tmp_path / "out" / "model.gguf", tmp_path / "expected.gguf"
    out.parent.mkdir()
    words = slow_conversion(large, out)
    run_here("convert", large, expected, "--quant", "Q5_K")
    started = start_there(*words, **SLOW)
    wait_for(lambda: any(b'"key"' in each.read_bytes() for each in out.parent.glob("*.journal")),
             started)  # fmt: skip
    started.kill()
    started.communicate(timeout=_LONGEST)
    assert not out.exists()
    report = tmp_path / "report.json"
    run_there(*words, "--report", there(report))
    assert json.loads(report.read_text())["kept_bytes"] > 0
    assert out.read_bytes() == expected.read_bytes()
    assert [each.name for each in out.parent.iterdir()] == [out.name]


STOPPED_SHARDS = """
import sys, weightctl
from weightctl.write import journal
journal.BEGIN_AFTER = 0.0
def stop(count):
    global left
    if (left := left - count) < 0:
        raise KeyboardInterrupt
left = 1_500_000
try:
    weightctl.shard(*sys.argv[1:], tp=2, threads=1, progress=stop)
except KeyboardInterrupt:
    print(weightctl.shard(*sys.argv[1:], tp=2).saved.kept_bytes)
"""


def test_stopped_shards_are_continued_and_replaced(tmp_path: Path) -> None:
    run_here("shard", MODEL, str(tmp_path / "here"), "--tp", "2")
    found = run_there(MODEL, there(tmp_path / "there"), command=("-c", STOPPED_SHARDS))
    assert int(found) > 1_000_000
    assert_same_files(tmp_path / "here", tmp_path / "there")
    source, out = MODEL.replace("/", "\\") + "\\", there(tmp_path / "there") + "\\"
    run_there("shard", source, out, "--tp", "4", "--force")
    run_here("shard", MODEL, str(tmp_path / "here"), "--tp", "4", "--force")
    assert_same_files(tmp_path / "here", tmp_path / "there")


def test_a_path_with_a_backslash_at_its_end_is_a_directory(tmp_path: Path) -> None:
    run_there("convert", MODEL, there(tmp_path / "model.new") + "\\", "--dtype", "f16")
    assert (tmp_path / "model.new" / "config.json").is_file()


# Waits in the midst of a conversion. A stopped process of wine can stop its server.
HELD = """
import sys, time, weightctl
from pathlib import Path
source, out, waits, goes_on = map(Path, sys.argv[1:])
def wait(count):
    waits.touch()
    while not goes_on.exists():
        time.sleep(0.01)
weightctl.convert(source, out, quant="Q5_K", progress=wait)
"""


def test_a_second_run_to_the_same_output_is_refused(tmp_path: Path) -> None:
    out, waits, goes_on = (tmp_path / name for name in ("out.gguf", "waits", "goes_on"))
    paths = [there(each) for each in (out, waits, goes_on)]
    started = start_there(MODEL, *paths, command=("-c", HELD))
    wait_for(waits.exists, started)
    try:
        text = run_there("convert", MODEL, there(out), "--quant", "Q5_K", code=2)
    finally:
        goes_on.touch()
    assert "another run is writing" in text
    finish(started)
    assert out.is_file()


HOLDING = """
import sys, time
file = open(sys.argv[1], "rb")
print("open", flush=True)
time.sleep(60)
"""


@contextmanager
def held_open(path: Path) -> Generator[None, None, None]:
    holding = subprocess.Popen(
        [*PYTHON, "-c", HOLDING, there(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert holding.stdout is not None
        holding.stdout.readline()
        yield
    finally:
        holding.kill()
        holding.communicate()


# `b` is the Restart Manager of wine, which finds no programs; `n` is tests/support/rstrtmgr.c.
@each(
    ("manager", "hint"),
    [
        ("b", "close the program that has the file open, or check its permissions"),
        ("n", "close the programs that have the file open: LM Studio (process 4242), Pruefer"),
    ],
)  # fmt: skip
def test_an_output_that_another_program_reads_stays_whole(
    manager: str, hint: str, quantized: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model.gguf"
    out.write_bytes(quantized.read_bytes())
    words = ("convert", MODEL, there(out), "--quant", "Q8_0", "--force")
    with held_open(out):
        text = run_there(*words, code=2, WINEDLLOVERRIDES=f"rstrtmgr={manager}")
        assert "model.gguf cannot be written: Access" in text
        assert hint in " ".join(text.split())
        assert out.read_bytes() == quantized.read_bytes()
        assert [each.name for each in tmp_path.iterdir()] == [out.name]
    run_there(*words)
    assert out.stat().st_size > quantized.stat().st_size
    assert [each.name for each in tmp_path.iterdir()] == [out.name]


# wine's function for the real path fails if it is long.
WITHOUT_LINKS = (
    "import ntpath; ntpath.realpath = ntpath.abspath; from weightctl.cli import main; main()"
)


def test_paths_of_any_length_are_read_and_written(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["x" * 50] * 8)
    deep.mkdir(parents=True)
    run_here("convert", MODEL, str(tmp_path / "here.gguf"), "--quant", "Q8_0")
    run_here("shard", MODEL, str(tmp_path / "here"), "--tp", "2")
    for words in (
        ("convert", MODEL, there(deep / "there.gguf"), "--quant", "Q8_0"),
        ("convert", MODEL, there(deep / "there.gguf"), "--quant", "Q8_0", "--force"),
        ("shard", MODEL, there(deep / "there"), "--tp", "2"),
        ("shard", MODEL, there(deep / "there"), "--tp", "2", "--force"),
        ("ls", there(deep / "there")),
    ):
        run_there(*words, command=("-c", WITHOUT_LINKS))
    assert (deep / "there.gguf").read_bytes() == (tmp_path / "here.gguf").read_bytes()
    assert_same_files(tmp_path / "here", deep / "there")
    run_there("edit", there(deep / "there.gguf"), "--set", "general.name=another",
              command=("-c", WITHOUT_LINKS))  # fmt: skip
    assert open_weights(deep / "there.gguf").metadata["general.name"].content == "another"
    assert sorted(each.name for each in deep.iterdir()) == ["there", "there.gguf"]


@each("form", ["Z:{}", "\\\\?\\Z:{}", "z:{}", "file:///Z:{}"])
def test_paths_of_windows_are_read(form: str) -> None:
    path = form.format(str(ROOT / MODEL).replace("/", "\\"))
    assert "model.norm.weight" in run_there("ls", "--flat", path)


def test_names_below_a_url_have_slashes() -> None:
    program = """
import os, sys
from weightctl.storage.location import parse_location
from weightctl.system.allocator import keep_memory, share_memory
share_memory(), keep_memory()  # what commands call for URLs and for models that run
print(parse_location(os.path.join("hf://openai-community/gpt2", "config.json")).name)
"""
    found = run_there(command=("-c", program))
    assert found.strip() == "hf://openai-community/gpt2/config.json"


@each("name", ["NUL", "con.gguf", "aux.gguf"])
def test_names_of_devices_are_refused(name: str, tmp_path: Path) -> None:
    text = run_there("convert", MODEL, there(tmp_path) + "\\" + name, "--to", "gguf", code=2)
    assert "name of a device" in text
    assert not any(tmp_path.iterdir())


def test_a_process_for_untrusted_files_gets_its_limits() -> None:
    program = "from weightctl.system.children import limit_process; limit_process(1 << 30, 20)"
    done = subprocess.run(
        [*PYTHON, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, check=False,
        timeout=_LONGEST,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr  # wine accepts the limits, and does not enforce them


def test_the_input_in_another_spelling_is_not_replaced(tmp_path: Path) -> None:
    source = ROOT / MODEL / "model.safetensors"
    (tmp_path / "model.safetensors").write_bytes(source.read_bytes())
    given, out = there(tmp_path / "model.safetensors"), there(tmp_path / "MODEL.safetensors")
    text = run_there("convert", given, out, "--dtype", "f16", "--force", code=2)
    assert "is the input itself" in text
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == source.read_bytes()


CURSOR = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])")


def show_there(*words: str, cwd: Path) -> str:
    """Return what a command shows in a console of Windows with 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONIOENCODING"}
    with ThreadPoolExecutor(1) as reader:
        written = reader.submit(read_all, ours)
        try:
            subprocess.run(
                [*PYTHON, "-m", "weightctl", *words], stdin=theirs, stdout=theirs, stderr=theirs,
                cwd=cwd, env=environment | {"TERM": "xterm"}, check=True, timeout=_LONGEST,
            )  # fmt: skip
        finally:
            os.close(theirs)
    shown = written.result().decode().replace("\r", "")
    # The cursor is moved over spaces, and made visible or not.
    return CURSOR.sub(lambda found: " " * int(found[1] or 1) if found[2] == "C" else "", shown)


def read_all(descriptor: int) -> bytes:
    written = b""
    with os.fdopen(descriptor, "rb", buffering=0) as terminal, suppress(OSError):
        while piece := terminal.read(65536):
            written += piece
    return written


def test_consoles_show_what_the_documentation_says(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(ROOT / MODEL)
    page = (ROOT / "docs" / "install.md").read_text()
    sessions = re.findall(r"^> (weightctl .*)\n((?:(?!>|```).*\n)*)", page, re.MULTILINE)
    assert len(sessions) == 2
    for command, screen in sessions:
        shown = show_there(*shlex.split(command)[1:], cwd=tmp_path)
        assert MEASURED.sub("", shown).strip() == MEASURED.sub("", screen).strip()


@each("encoding", ["cp1252", "cp437"])
def test_characters_that_a_code_page_lacks_are_escaped(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "\u6a21\u578b.safetensors"
    names = ("caf\u00e9.weight", "\u6a21\u578b.weight", "\U0001f600.weight")
    data = {name: np.zeros((4, 4), np.float32) for name in names}
    save(Plan.copy(as_checkpoint(data), "safetensors"), path)
    done = subprocess.run(
        [*PYTHON, "-m", "weightctl", "ls", "--flat", there(path), there(tmp_path / "\u6a21")],
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding}, timeout=_LONGEST,
    )  # fmt: skip
    assert done.returncode == 2
    out, errors = done.stdout.decode(encoding), done.stderr.decode(encoding)
    assert "Traceback" not in errors
    assert all(name.encode(encoding, "backslashreplace").decode(encoding) in out for name in names)
    assert "\\u6a21: " in errors
