"""A plug-in that cannot be used is refused with the name of its package and a remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from arrays import stored
from commands import run_command
from each import each
from installed import importing_from, install

if TYPE_CHECKING:
    from pathlib import Path

_FORMAT = "from weightctl.formats import FormatLine\nTABLE = "
_SCHEME = "from weightctl.schemes import SchemeLine\nTABLE = "
_STORE = "from weightctl.storage.location import StorageLine\nTABLE = "
_WRITTEN = '{"x": SchemeLine("odd:X", (".x",), {"%s": "odd:X"})}'
_OTHER = "is not a dictionary of names and of `weightctl."


class Fault(NamedTuple):
    """The group and the code of a plug-in, the command that needs it, and what it says.

    `MODEL` is a checkpoint with a tensor of bytes, and `HERE` the folder with it.
    """

    group: str
    code: str
    command: str
    says: str


FAULTS = {
    "a format that is missing": Fault("formats", "", "ls HERE/a.odd", "has no attribute 'TABLE'"),
    "an import that fails": Fault(
        "formats", "import what_no_one_has", "ls HERE/a.odd",
        "ModuleNotFoundError: No module named 'what_no_one_has'",
    ),
    "code with an error": Fault("formats", "1 / 0", "ls HERE/a.odd", "ZeroDivisionError"),
    "code that is not Python": Fault("formats", "def", "ls HERE/a.odd", "SyntaxError"),
    "a list of formats": Fault(
        "formats", "TABLE = ['odd']", "ls HERE/a.odd", f"{_OTHER}formats.FormatLine`"
    ),
    "a format that is a tuple": Fault(
        "formats", "TABLE = {'odd': ('odd', '.odd')}", "ls HERE/a.odd", f"{_OTHER}formats."
    ),
    "a format of weightctl": Fault(
        "formats", _FORMAT + "{'gguf': FormatLine('odd', ('.odd',))}", "ls HERE/a.odd",
        "adds the format `gguf`, which exists already",
    ),
    "a format of another package": Fault(
        "formats", _FORMAT + "{'npz': FormatLine('odd', ('.odd',))}", "ls HERE/a.odd",
        "adds the format `npz`, which exists already",
    ),
    "a module that is missing": Fault(
        "formats", _FORMAT + "{'odd': FormatLine('odd_one', ('.odd',))}", "ls HERE/a.odd",
        "`odd_one` cannot be imported: ModuleNotFoundError",
    ),
    "a module that is not a format": Fault(
        "formats", _FORMAT + "{'odd': FormatLine('json', ('.odd',))}", "ls HERE/a.odd",
        "`json` is not a weightctl.formats.base.Format",
    ),
    "a family that is a number": Fault(
        "families", "TABLE = 1", "convert HERE/toy HERE/out.gguf",
        "it is neither the path of a file nor a `weightctl.families.family.Family`",
    ),
    "a family without a file": Fault(
        "families", "TABLE = 'nowhere.toml'", "convert HERE/toy HERE/out.gguf",
        "No such file or directory: 'nowhere.toml'",
    ),
    "a family of weightctl": Fault(
        "families", "import dataclasses\nfrom weightctl.families.falcon import FAMILY\n"
        "TABLE = dataclasses.replace(FAMILY, name='f2')", "convert HERE/toy HERE/out.gguf",
        "the model_type `falcon` belongs to the family falcon",
    ),
    "a family that cannot be listed": Fault(
        "families", "TABLE = 1", "ls --families", "it is neither the path"
    ),
    "a scheme of weightctl": Fault(
        "schemes", _SCHEME + '{"awq": SchemeLine("odd:X", (".x",))}', "ls MODEL",
        "adds the scheme `awq`, which exists already",
    ),
    "a scheme that is missing": Fault(
        "schemes", _SCHEME + '{"x": SchemeLine("odd:X", (".x",))}', "ls MODEL",
        "`odd:X` cannot be imported: AttributeError",
    ),
    "a scheme that is a number": Fault(
        "schemes", "X = 1\n" + _SCHEME + '{"x": SchemeLine("odd:X", (".x",))}', "ls MODEL",
        "`odd:X` is not a weightctl.schemes.scheme.Scheme",
    ),
    "a type that is a recipe": Fault(
        "schemes", _SCHEME + _WRITTEN % "q4-k-m", "convert MODEL HERE/out/ --quant other",
        "adds the type `q4-k-m`, which exists already",
    ),
    "a type of weightctl": Fault(
        "schemes", _SCHEME + _WRITTEN % "W4A16", "convert MODEL HERE/out/ --quant other",
        "adds the type `W4A16`, which exists already",
    ),
    "a type that is a number": Fault(
        "schemes", "X = 1\n" + _SCHEME + _WRITTEN % "OTHER",
        "convert MODEL HERE/out/ --quant other",
        "`odd:X` is not a weightctl.schemes.scheme.WrittenScheme",
    ),
    "a store of weightctl": Fault(
        "stores", _STORE + '{"s3": StorageLine("odd:X")}', "ls odd://a",
        "adds the URL scheme `s3`, which exists already",
    ),
    "a store that is missing": Fault(
        "stores", _STORE + '{"odd": StorageLine("odd:X")}', "ls odd://a",
        "`odd:X` cannot be imported: AttributeError",
    ),
    "a store without its package": Fault(
        "stores", _STORE + '{"odd": StorageLine("no_store:X")}', "ls odd://a",
        "ModuleNotFoundError: No module named 'no_store'",
    ),
    "a store with a fault": Fault(
        "stores", "class X:\n  def open(self, *words): 1 / 0\n"
        "  find = list_names = prepare = uploads = refresh = open\n"
        + _STORE + '{"odd": StorageLine("odd:X")}', "ls odd://a", "ZeroDivisionError",
    ),
    "a store that is a number": Fault(
        "stores", "X = 1\n" + _STORE + '{"odd": StorageLine("odd:X")}', "ls odd://a",
        "`odd:X` is not a weightctl.storage.base.Store",
    ),
}  # fmt: skip


def make_inputs(folder: Path) -> None:
    """Write `MODEL`, a file of an unknown format, and a model of an unknown family."""
    stored(
        folder / "model.safetensors",
        **{"l.q": np.zeros((4, 8), np.int8), "l.x": np.zeros((4, 1), np.float32)},
    )
    (folder / "a.odd").write_bytes(b"ODD!" * 100)
    (folder / "toy").mkdir()
    stored(folder / "toy" / "model.safetensors", **{"l.weight": np.zeros((4, 8), np.float32)})
    (folder / "toy" / "config.json").write_text('{"model_type": "toy"}')


@each("name", FAULTS)
def test_a_plug_in_with_a_fault_is_named(name: str, tmp_path: Path) -> None:
    group, code, command, says = FAULTS[name]
    make_inputs(tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    install(site, "odd", code, f"[weightctl.{group}]", "part = odd:TABLE")
    words = command.replace("MODEL", str(tmp_path / "model.safetensors"))
    with importing_from(site):
        done = run_command(*words.replace("HERE", str(tmp_path)).split())
    assert done.returncode == 2, done.stdout
    place = f"the entry point `part` of the group weightctl.{group} (package odd 1.0)"
    assert f"error: {place}" in done.stderr
    assert says in done.stderr
    assert (
        "install another version of the package, or remove it: `pip uninstall odd`" in done.stderr
    )


def test_two_plug_ins_with_one_name_are_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    for name in ("one", "two"):
        code = _STORE + '{"odd": StorageLine("odd:X")}'
        install(site, name, code, "[weightctl.stores]", f"part = {name}:TABLE")
    with importing_from(site):
        done = run_command("ls", "odd://a")
    assert re.search(r"\(package two 1.0\) adds the URL scheme `odd`, which exists", done.stderr)


def test_a_fault_in_a_plug_in_does_not_matter_where_none_is_needed(
    tiny_llama: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for group in ("families", "formats", "schemes", "stores"):
        install(site, f"odd_{group}", "1 / 0", f"[weightctl.{group}]", "part = odd:TABLE")
    with importing_from(site):
        for command in (
            ("ls", tiny_llama), ("convert", tiny_llama, tmp_path / "a.gguf", "--quant", "Q4_K_M"),
            ("ls", tmp_path / "a.gguf"), ("verify", tmp_path / "a.gguf", "--check", "structure"),
            ("convert", tiny_llama, f"{tmp_path}/b/", "--quant", "W4A16"), ("check", tiny_llama),
            ("ls", f"file://{tmp_path}/b"), ("convert", tmp_path / "b", tmp_path / "c.gguf"),
        ):  # fmt: skip
            done = run_command(*map(str, command))
            assert done.returncode == 0, done.stderr
