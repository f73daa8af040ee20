"""Outputs to pipes: in one pass, without seeking, and with the same bytes as in a file."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from each import usual
from weightctl import Plan, open_weights
from weightctl.errors import ConversionError, OutputError
from weightctl.formats import FORMATS
from weightctl.plan.arrangement import split
from weightctl.translate.plans import plan_of
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed

    Run = Callable[..., Completed]

EACH_FORMAT = pytest.mark.parametrize("name", FORMATS)
# Where the format makes no difference to what is written, but to the bytes.
ONE_FORMAT = pytest.mark.parametrize("name", usual(["gguf"], FORMATS))
# Both names of stdout, each with some of the formats.
EACH_PLACE = pytest.mark.parametrize(
    ("name", "out"),
    usual(
        [("gguf", "-"), ("pytorch", "-"), ("safetensors", "/dev/stdout")],
        product(FORMATS, ["-", "/dev/stdout"]),
    ),
)
COMMAND = f"{sys.executable} -m weightctl convert"


@pytest.fixture(scope="module")
def whole(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The content of the output file in each format."""
    made: dict[str, bytes] = {}
    for name, line in FORMATS.items():
        path = tmp_path_factory.mktemp("whole") / f"out{line.suffix}"
        save(planned(tiny_llama, name), path)
        made[name] = path.read_bytes()
    return made


def planned(path: Path, name: str) -> Plan:
    """Return the plan of the command for a file: a translation for GGUF, else a copy."""
    return plan_of(open_weights(path), name)


def shell(script: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run a script; its exit code is that of the first failing command in a pipe."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def complaint(done: subprocess.CompletedProcess[bytes] | Completed) -> str:
    """Return the only error in a command's output."""
    message = done.stderr.decode() if isinstance(done.stderr, bytes) else done.stderr
    assert "Traceback" not in message
    (error,) = [line for line in message.splitlines() if line.startswith("error: ")]
    return error


def suffixed(path: Path, name: str) -> Path:
    return path / f"out{FORMATS[name].suffix}"


# The same bytes


@EACH_FORMAT
def test_a_named_pipe_gets_what_a_file_would(
    weightctl: Run, tiny_llama: Path, whole: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    pipe = suffixed(tmp_path, name)
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(pipe.read_bytes)
        done = weightctl("convert", tiny_llama, pipe)
        assert reader.result() == whole[name]
    assert done.returncode == 0
    assert "30 tensors" in done.stdout


@ONE_FORMAT
def test_save_writes_into_a_named_pipe(
    tiny_llama: Path, whole: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    pipe = suffixed(tmp_path, name)
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(pipe.read_bytes)
        saved = save(planned(tiny_llama, name), pipe)
        assert reader.result() == whole[name]
    assert saved.paths == [str(pipe)]
    assert saved.nbytes == len(whole[name])


def test_a_named_pipe_is_not_replaced_by_a_file_even_with_force(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "out.gguf"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(pipe.read_bytes)
        assert weightctl("convert", tiny_llama, pipe, "--force").returncode == 0
        assert reader.result()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["out.gguf"]


@EACH_PLACE
def test_stdout_gets_what_a_file_would_through_a_pipe(
    tiny_llama: Path, whole: dict[str, bytes], name: str, out: str
) -> None:
    done = shell(f"{COMMAND} {tiny_llama} {out} --to {name} | cat")
    assert done.returncode == 0
    assert done.stdout == whole[name]


@EACH_PLACE
def test_stdout_gets_what_a_file_would_when_it_is_a_file(
    tiny_llama: Path, whole: dict[str, bytes], tmp_path: Path, name: str, out: str
) -> None:
    done = shell(f"{COMMAND} {tiny_llama} {out} --to {name} > {tmp_path}/out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == whole[name]


@EACH_FORMAT
def test_what_went_through_a_pipe_can_be_read(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    out = suffixed(tmp_path, name)
    arguments = "--quant Q8_0" if name == "gguf" else "--dtype f16"
    assert shell(f"{COMMAND} {tiny_llama} - --to {name} {arguments} | cat > {out}").returncode == 0
    other = tmp_path / f"other{out.suffix}"
    assert weightctl("convert", tiny_llama, other, *arguments.split()).returncode == 0
    assert other.read_bytes() == out.read_bytes()
    assert len(open_weights(out).header.tensors) == 30


@ONE_FORMAT
def test_a_file_that_is_appended_to_gets_what_a_new_one_would(
    tiny_llama: Path, whole: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    # Linux does not copy to a file that is opened for appending.
    (tmp_path / "out").write_bytes(b"before")
    done = shell(f"{COMMAND} {tiny_llama} - --to {name} >> {tmp_path}/out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == b"before" + whole[name]


@ONE_FORMAT
def test_another_file_system_gets_what_its_own_would(
    tiny_llama: Path, whole: dict[str, bytes], name: str
) -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this machine has no second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="weightctl-test-") as other:
        out = suffixed(Path(other), name)
        save(planned(tiny_llama, name), out)
        assert out.read_bytes() == whole[name]


SLOW = """
import sys, time
while piece := sys.stdin.buffer.read1(100_000):
    sys.stdout.buffer.write(piece)
    time.sleep(0.002)
"""


def test_a_slow_reader_gets_everything(tiny_llama: Path, whole: dict[str, bytes]) -> None:
    done = shell(f"{COMMAND} {tiny_llama} - --to gguf | {sys.executable} -c '{SLOW}'")
    assert done.stdout == whole["gguf"]


def test_a_device_takes_an_output(weightctl: Run, tiny_llama: Path) -> None:
    assert weightctl("convert", tiny_llama, "/dev/null", "--to", "gguf").returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


# What is reported, and where


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_the_summary_goes_to_stderr_when_stdout_takes_the_output(
    tiny_llama: Path, out: str
) -> None:
    done = shell(f"{COMMAND} {tiny_llama} {out} --to gguf | cat > /dev/null")
    assert "-> stdout (gguf)\n30 tensors, 3.87 MB -> 3.87 MB" in done.stderr.decode()


def test_quiet_says_nothing(tiny_llama: Path) -> None:
    assert shell(f"{COMMAND} {tiny_llama} - --to gguf --quiet | cat > /dev/null").stderr == b""


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_a_dry_run_into_stdout_shows_the_plan(weightctl: Run, tiny_llama: Path, out: str) -> None:
    done = weightctl("convert", tiny_llama, out, "--to", "gguf", "--dry-run")
    assert done.returncode == 0
    assert "-> stdout (gguf)" in done.stdout
    assert done.stdout.endswith("nothing was written\n")


def test_a_dry_run_into_stdout_can_be_json(
    weightctl: Run, tiny_llama: Path, whole: dict[str, bytes]
) -> None:
    done = weightctl("convert", tiny_llama, "-", "--to", "gguf", "--dry-run", "--json")
    report = json.loads(done.stdout)
    assert (report["output"], report["written"], report["bytes"]) == (
        "-",
        False,
        len(whole["gguf"]),
    )


def test_a_dry_run_waits_for_no_reader(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.gguf")
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--dry-run")
    assert done.returncode == 0
    assert "nothing was written" in done.stdout


def test_a_report_is_kept_beside_an_output_into_stdout(
    tiny_llama: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    done = shell(f"{COMMAND} {tiny_llama} - --to gguf --report {report} | cat")
    assert done.stdout == whole["gguf"]
    assert json.loads(report.read_text())["bytes"] == len(whole["gguf"])


# What is refused


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_stdout_needs_a_format(weightctl: Run, tiny_llama: Path, out: str) -> None:
    done = weightctl("convert", tiny_llama, out)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint(done) == "error: the output format for stdout is not specified"
    assert "hint: use --to (`to` in Python) with one of safetensors, gguf" in done.stderr


def test_a_pipe_without_a_suffix_needs_a_format(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = weightctl("convert", tiny_llama, tmp_path / "pipe")
    assert done.returncode == 2
    assert complaint(done) == f"error: the output format for {tmp_path}/pipe is not specified"


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_json_and_the_output_do_not_share_stdout(
    weightctl: Run, tiny_llama: Path, out: str
) -> None:
    done = weightctl("convert", tiny_llama, out, "--to", "gguf", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint(done) == "error: --json and the checkpoint cannot both be written to stdout"
    assert "--report FILE" in done.stderr


@pytest.mark.parametrize("report", ["-", "/dev/stdout"])
@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_a_report_and_the_output_do_not_share_stdout(
    tiny_llama: Path, out: str, report: str
) -> None:
    done = shell(f"{COMMAND} {tiny_llama} {out} --to gguf --report {report} | cat")
    assert (done.returncode, done.stdout) == (2, b"")
    assert complaint(done) == f"error: the report path {report} is the same as the output"


def test_a_report_and_the_output_do_not_share_a_named_pipe(
    tiny_llama: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "out.gguf"
    os.mkfifo(pipe)
    # Output after the end of the GGUF would have no reader.
    done = shell(
        f"cat {pipe} > /dev/null & timeout 10 {COMMAND} {tiny_llama} {pipe} --report {pipe} & "
        "wait $!; code=$?; kill %1; exit $code"
    )
    assert done.returncode == 2
    assert complaint(done) == f"error: the report path {pipe} is the same as the output"


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_a_terminal_takes_no_checkpoint(tiny_llama: Path, out: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "weightctl", "convert", tiny_llama, out, "--to", "gguf", "-q"],
        stdout=theirs,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the terminal reports this way that all writers are gone
            while piece := os.read(ours, 1 << 16):
                shown += piece
        os.close(ours)
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 2
    assert shown == b""
    assert b"error: a checkpoint cannot be written to a terminal" in errors


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_several_files_do_not_go_into_stdout(tiny_llama: Path, out: str) -> None:
    done = shell(f"{COMMAND} {tiny_llama} {out} --to gguf --max-shard-size 1MB | cat")
    assert (done.returncode, done.stdout) == (2, b"")
    assert complaint(done) == "error: stdout accepts one file, but the output would have 5 files"


def test_several_files_do_not_go_into_a_named_pipe(tiny_llama: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "out.gguf"
    os.mkfifo(pipe)
    plan = split(Plan.copy(open_weights(tiny_llama), "gguf"), 1_000_000)
    with pytest.raises(ConversionError, match=r"out\.gguf accepts one file") as caught:
        save(plan, pipe)
    assert "--max-shard-size" in caught.value.hint


def test_a_size_that_takes_all_of_it_is_not_a_hindrance(
    tiny_llama: Path, whole: dict[str, bytes]
) -> None:
    done = shell(f"{COMMAND} {tiny_llama} - --to gguf --max-shard-size 5GB | cat")
    assert done.stdout == whole["gguf"]


def test_a_named_pipe_is_not_an_input(weightctl: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.gguf")
    done = weightctl("convert", tmp_path / "in.gguf", tmp_path / "out.gguf")
    assert done.returncode == 2
    assert complaint(done).endswith(
        "in.gguf: it is not a regular file (it is a pipe, a socket or a device)"
    )


# Readers that stop


@ONE_FORMAT
@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_a_reader_that_stops_early_is_an_error_that_says_so(
    tiny_llama: Path, whole: dict[str, bytes], name: str, out: str
) -> None:
    done = shell(f"{COMMAND} {tiny_llama} {out} --to {name} | head -c 100")
    assert done.returncode == 2
    assert done.stdout == whole[name][:100]
    assert complaint(done) == "error: stdout cannot be written: Broken pipe"
    assert b"hint: the reader closed the pipe before the end" in done.stderr


def test_a_reader_of_a_named_pipe_that_stops_early_is_an_error_that_says_so(
    tiny_llama: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "out.gguf"
    os.mkfifo(pipe)

    def read() -> bytes:
        with pipe.open("rb", buffering=0) as stream:
            return stream.read(100)

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        with pytest.raises(OutputError, match="Broken pipe") as caught:
            save(planned(tiny_llama, "gguf"), pipe)
        assert reader.result()[:4] == b"GGUF"
    assert "the reader closed the pipe before the end" in caught.value.hint
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_stdout_that_is_closed_is_an_error_that_says_so(tiny_llama: Path) -> None:
    done = shell(f"{COMMAND} {tiny_llama} - --to gguf >&-")
    assert done.returncode == 2
    assert complaint(done) == "error: stdout is closed"


def test_a_full_device_is_an_error_that_says_so(tiny_llama: Path) -> None:
    done = shell(f"{COMMAND} {tiny_llama} - --to gguf > /dev/full")
    assert done.returncode == 2
    assert complaint(done) == "error: stdout cannot be written: No space left on device"
