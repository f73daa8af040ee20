"""A model family, a format, a scheme and a store: what the entry points refer to."""

from pathlib import Path

from weightctl.formats import FormatLine
from weightctl.schemes import SchemeLine
from weightctl.storage.location import StorageLine

TOY = Path(__file__).with_name("toy.toml")
FORMATS = {"raw": FormatLine("weightctl_example.raw", (".raw",), types_of="pytorch")}
SCHEMES = {
    "steps": SchemeLine(
        "weightctl_example.steps:SCHEME",
        scales=(".steps",),
        written={"STEPS": "weightctl_example.steps:STEPS"},
        method="steps",
    )
}
STORES = {"shelf": StorageLine("weightctl_example.shelf:ShelfStore")}
