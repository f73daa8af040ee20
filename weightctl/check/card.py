"""Rules for the model card: the front matter of README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.translate.card.readme import read_front_matter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.check.model import CheckedModel
    from weightctl.check.rules import RuleFinding

_README = "README.md"
_KEYS = (
    "license", "license_name", "license_link", "base_model", "library_name", "language", "tags",
)  # fmt: skip


def find_wrong_front_matter(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find a README.md whose front matter cannot be read."""
    if model.directory is None:
        return
    try:
        read_front_matter(model.locate(_README), _KEYS)
    except ValueError as error:
        yield model.report(_README, "", str(error))


def find_unnamed_license(model: CheckedModel) -> Iterator[RuleFinding]:
    facts = _read_facts(model)
    if facts.get("license") == "other" and not facts.get("license_name"):
        yield model.report(_README, "license", "is `other`, and there is no `license_name`")


def find_other_base(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find a base model that is not that of adapter_config.json."""
    base = (model.document("adapter_config.json") or {}).get("base_model_name_or_path")
    stated: Any = _read_facts(model).get("base_model")
    names: list[Any] = [stated] if isinstance(stated, str) else stated or []
    # A path of the machine that trained the adapter is not the name of a model.
    is_name = isinstance(base, str) and base.count("/") == 1 and not base.startswith((".", "/"))
    if is_name and names and base not in names:
        text = f"is {', '.join(map(str, names))}, and {base} in adapter_config.json"
        yield model.report(_README, "base_model", text)


def _read_facts(model: CheckedModel) -> Mapping[str, Any]:
    if model.directory is None:
        return {}
    try:
        return read_front_matter(model.locate(_README), _KEYS)
    except ValueError:  # another rule reports it
        return {}
