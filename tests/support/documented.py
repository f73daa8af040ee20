"""Examples and tables of the documentation, and what they are compared with."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import weightctl
from commands import run_command, run_program
from real_files import fetch
from weightctl.deltas.creating import write_patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# The names, signatures and import lines in the five specification documents.
# They are copied from the documents themselves, so that a mistake in our page is found.
# Annotations are omitted, and a signature is None if the document does not state it.

_DEVICE = "device=cpu:0"
_LOAD = "state_dict, *, override_quantization_encoding=False"

# Headings of the documents, in which `Weight` and `Weights` are classes of `*args, **kwargs`.
SIGNATURES: dict[str, str | None] = {
    # 000
    "Weight(value)": None,
    "Weight.align": None,
    "Weight.device": None,
    "Weight.dtype": None,
    "Weight.original_dtype_and_shape": None,
    "Weight.quantization_encoding": None,
    "Weight.shape": None,
    "Weight.shard": "devices",
    "Weight.shard_idx": None,
    "Weight.sharding_strategy": None,
    # 001
    "Weights.allocate": f"dtype=None, shape=None, quantization_encoding=None, {_DEVICE}",
    "Weights.allocated_weights": None,
    "Weights.data": "",
    "Weights.exists": "",
    "Weights.items": "",
    "Weights.name": None,
    # 002
    "WeightData": "data, name, dtype, shape, quantization_encoding=None",
    "WeightData.astype": "dtype",
    "WeightData.data": None,
    "WeightData.dtype": None,
    "WeightData.from_numpy": "arr, name",
    "WeightData.name": None,
    "WeightData.quantization_encoding": None,
    "WeightData.shape": None,
    "WeightData.to_buffer": "",
    # 003
    "Module.build_subgraph": "name, input_types, weight_prefix=''",
    "Module.layer_weights": None,
    "Module.load_state_dict": f"{_LOAD}, weight_alignment=None, strict=True",
    "Module.raw_state_dict": "",
    "Module.set_shared_weight": "name, weight",
    "Module.state_dict": "auto_initialize=True",
    "Module.sublayers": None,
    # 004
    "LayerList": "layers",
    "LayerList.append": "layer",
    "LayerList.extend": "layer",
    "LayerList.insert": "i, layer",
    "LayerList.sublayers": None,
    "LayerV2.layer_weights": None,
    "LayerV2.load_state_dict": _LOAD,
    "LayerV2.raw_state_dict": "",
    "LayerV2.set_shared_weight": "name, weight",
    "LayerV2.state_dict": "auto_initialize=True",
    "LayerV2.sublayers": None,
    "LayerV2.to": "*devices, sharding_strategy=None",
    "add_layer_hook": "fn",
    "clear_hooks": "",
    "recursive_named_layers": "parent, prefix=''",
    # Names in examples and sentences that have no heading.
    "Graph(name)": "name",
    "Graph.weights": "",
    "Graph.add_weight": "weight",
    "Graph.output": None,
    "TensorValue(value)": "value",
    "TensorValue.T": None,
    "TensorValue.device": None,
    "TensorValue.dtype": None,
    "TensorValue.print": None,
    "TensorValue.shape": None,
    "TensorValue.tensor": None,
    "TensorValue.type": None,
    "ops.call": None,
    "ops.constant": None,
    "ops.silu": None,
    "DeviceRef.CPU": None,
    "DeviceRef.GPU": None,
    "weights.layers": None,
    "weights[0]": None,
}

# Paths in headings, in annotations and in imports of examples, without the package.
PATHS = (
    "graph.Weight",
    "graph.weights.Weights",
    "graph.weights.WeightData",
    "nn.Module",
    "pipelines.nn.layer.Layer",
    "pipelines.nn.layer.LayerList",
    "pipelines.nn.layer.LayerV2",
    "graph.weight.Weight",
    "driver.Tensor",
    "driver.tensor.DLPackArray",
    "dtype.DType",
    "graph.Graph",
    "graph.ops",
    "graph.DeviceRef",
    # Types of parameters and results that have no path in the documents.
    "graph.TensorValue",
    "graph.Type",
    "graph.Dim",
    "graph.Shape",
    "graph.ShardingStrategy",
    "graph.quantization.QuantizationEncoding",
    "driver.Buffer",
)

# As in the documents, except for the name of the package.
IMPORTS = (
    "from weightctl.dtype import DType\nfrom weightctl.graph import Graph, ops",
    "from weightctl.graph import Graph\nfrom weightctl.dtype import DType",
    """from weightctl import nn
from weightctl.dtype import DType
from weightctl.graph import Weight, ops, DeviceRef""",
)


# The examples of a page: console sessions and Python programs, and their current output.

_EXAMPLE = re.compile(
    r"^```console\n(?P<session>.*?)^```\n"
    r"|^```python\n(?P<program>.*?)^```\n\n```text\n(?P<output>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)
_PROCESSES = re.compile(
    r"^```py\n(?P<program>.*?)^```\n\n```text\n\$ (?P<command>.*?)\n(?P<output>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)
# The directory of readers, in messages that show a full path.
_HOME = "/home/user/"
_SURROUNDINGS = {"COLUMNS": "100"}
_TIMES = re.compile(r"^\d+\.\d+ s, [\d.]+ .?B/s$", re.MULTILINE)


class Failure(NamedTuple):
    """A command of a page whose exit code was not 0."""

    command: str
    code: int
    output: str


class Played(NamedTuple):
    """A page with the output that its examples print now, and the commands that failed."""

    text: str
    failures: tuple[Failure, ...]


def has_examples(text: str) -> bool:
    """Whether a page has examples that `play` runs."""
    return _EXAMPLE.search(text) is not None


def without_times(text: str) -> str:
    """Return a text without the parts that differ in each run."""
    return _TIMES.sub("(time)", text)


def run(command: str, folder: Path) -> tuple[str, int]:
    """Run a command as a reader does, with a pipe for its output; return output and exit code.

    `weightctl` alone, or in front of a pipe, runs in this process; other programs in a shell.
    """
    shown, code = "", 0
    for operator, part in _split_steps(command):
        if (operator, bool(code)) not in {("&&", True), ("||", False)}:
            output, code = _run_step(part, folder, code)
            shown += output
    return shown.replace(f"{folder}/", _HOME), code


def _split_steps(command: str) -> list[tuple[str, str]]:
    """Return the parts of a line between `;`, `&&` and `||`, each with the operator before it."""
    parts = re.split(r"""((?:"[^"]*"|'[^']*'|[^"';&|]|(?<!\|)\|(?!\|))+)""", command)
    return [
        (operator.strip(), part.strip())
        for operator, part in zip(parts[::2], parts[1::2], strict=False)
    ]


def _run_step(command: str, folder: Path, last: int) -> tuple[str, int]:
    words, rest = _split_plain(command), ""
    if words is None:
        ours, _, rest = command.partition(" | ")
        words = _split_plain(ours)
    if words is None:
        return _run_in_shell(f"(exit {last}); {command}", folder)
    done = run_command(*words, cwd=folder, is_merged=not rest)
    if not rest:
        return done.stdout, done.returncode
    shown, code = _run_in_shell(rest, folder, done.stdout)
    return done.stderr + shown, code or done.returncode


def _split_plain(command: str) -> list[str] | None:
    """Return the arguments of `weightctl`; None for another program or a shell's own characters."""
    unquoted = re.sub(r"""'[^']*'|"[^"]*\"""", "", command)
    if not command.startswith("weightctl ") or re.search(r"['\"<>;&|$`*?~{}()\\#\[]", unquoted):
        return None
    return shlex.split(command)[1:]


def _run_in_shell(command: str, folder: Path, given: str | None = None) -> tuple[str, int]:
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        input=given,
        # In another language of the system, `ls` would sort names differently.
        env=os.environ | _SURROUNDINGS | {"PATH": path, "LC_ALL": "C.UTF-8"},
    )
    return done.stdout, done.returncode


def play(text: str, folder: Path, *, keep_times: bool = True) -> Played:
    """Run all examples of a page, one after another, in a folder.

    With `keep_times`, output that differs only in times is not changed.
    """
    failures: list[Failure] = []

    def renew(match: re.Match[str]) -> str:
        old = match.group()
        if match["program"] is None:
            made = "".join(_play_session(match["session"], folder, failures))
            new = f"```console\n{made}```\n"
        else:
            (folder / "example.py").write_text(match["program"])
            done = run_program(folder / "example.py", **_SURROUNDINGS)
            output = done.stdout.replace(f"{folder}/", _HOME)
            if done.returncode:
                failures.append(Failure("python example.py", done.returncode, output))
            new = f"```python\n{match['program']}```\n\n```text\n{output}```\n"
        same = without_times(old) == without_times(new)
        return old if same and keep_times else new

    made = _EXAMPLE.sub(renew, text)
    return Played(made, tuple(failures))


def play_processes(text: str, folder: Path) -> Played:
    """Run the examples of a page that are programs with several processes."""
    failures: list[Failure] = []

    def renew(match: re.Match[str]) -> str:
        (folder / "program.py").write_text(match["program"])
        # The module is found where the script is in the path of another environment. torchrun
        # reports its choice of threads, unless one is made.
        command = re.sub(
            "^torchrun", f"{sys.executable} -m torch.distributed.run", match["command"]
        )
        output = _run(f"OMP_NUM_THREADS=1 {command}", folder, failures)
        block = f"```text\n$ {match['command']}\n{output}```\n"
        return f"```py\n{match['program']}```\n\n{block}"

    made = _PROCESSES.sub(renew, text)
    return Played(made, tuple(failures))


def _play_session(session: str, folder: Path, failures: list[Failure]) -> Iterator[str]:
    for line in session.splitlines():
        if line.startswith("$ "):
            yield f"{line}\n{_run(line.removeprefix('$ '), folder, failures)}"


def _run(command: str, folder: Path, failures: list[Failure]) -> str:
    output, code = run(command, folder)
    if code:
        failures.append(Failure(command, code, output))
    return output


# The files that the examples of the documents and of the help pages use, under plain names.

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
TINY = FIXTURES / "tiny-llama"


def _copy_model(path: Path) -> None:
    copytree(TINY, path, ignore=ignore_patterns("held-out.txt"))


def _convert_model(path: Path, quant: str | None = None) -> None:
    # The name of the model is that of its directory, which readers call `model`.
    with TemporaryDirectory() as folder:
        _copy_model(Path(folder) / "model")
        weightctl.convert(Path(folder) / "model", path, quant=quant)


def _copy_adapter(path: Path) -> None:
    copytree(FIXTURES / "tiny-adapter", path)


def _merge_model(path: Path) -> None:
    weightctl.convert(TINY, path, adapters=[FIXTURES / "tiny-adapter"])


def _write_patch(path: Path) -> None:
    with TemporaryDirectory() as folder:
        _merge_model(Path(folder) / "tuned")
        _copy_model(Path(folder) / "model")
        write_patch(Path(folder) / "model", Path(folder) / "tuned", path)


def _link_real_model(path: Path) -> None:
    (file,) = fetch("smollm2").glob("*.gguf")
    path.symlink_to(file)


def _copies(fixture: str) -> Callable[[Path], object]:
    return lambda path: copyfile(FIXTURES / fixture, path)


_FILES: dict[str, Callable[[Path], object]] = {
    "model": _copy_model,
    "copy": _copy_model,
    "model.gguf": _convert_model,
    "adapter": _copy_adapter,
    "tuned": _merge_model,
    "tuned.patch": _write_patch,
    "model-q4.gguf": lambda path: _convert_model(path, "Q4_K_M"),
    "model-q8.gguf": lambda path: _convert_model(path, "Q8_0"),
    "smollm2.gguf": _link_real_model,
    "training.pt": _copies("training.pt"),
    "checkpoint.pt": _copies("training.pt"),
    "downloaded.pt": _copies("attack.pt"),
    "notes.txt": _copies("tiny-llama/held-out.txt"),
    "recipe.toml": _copies("recipe.toml"),
    "plan.toml": _copies("shard.toml"),
    "rules.toml": _copies("shard.toml"),
    "template.jinja": lambda path: path.write_text("{{ messages }}"),
}
# docs/index.md describes each of them.
_DOCUMENTED = (
    "model", "model.gguf", "adapter", "tuned", "training.pt", "downloaded.pt", "recipe.toml",
    "plan.toml",
)  # fmt: skip


def make_example_files(folder: Path, names: Iterable[str] = _DOCUMENTED) -> None:
    for name in names:
        _FILES[name](folder / name)
