"""Reads the accounts of Google Cloud Storage and Azure Blob Storage from the environment.

obstore reads objects, and other libraries write them; the variables are those of obstore.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

# The account and key of Microsoft's emulator, which are public.
_EMULATOR = "devstoreaccount1"
_EMULATOR_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_EMULATOR_URL = "http://127.0.0.1:10000"


class GoogleAccount(NamedTuple):
    """An account of Google Cloud Storage; if all fields are empty, the default of the machine.

    `service` is the content of a service account's JSON file.
    """

    endpoint: str = ""
    service: Mapping[str, Any] = {}
    token: str = ""
    is_anonymous: bool = False


class AzureAccount(NamedTuple):
    """An account of Azure Blob Storage; without a secret, the logged-in user's credentials apply.

    `signature` is a shared access signature, and `token` an OAuth token.
    """

    name: str
    endpoint: str
    key: str = ""
    signature: str = ""
    token: str = ""
    is_anonymous: bool = False


def google_account() -> GoogleAccount:
    """Return the account in the environment; raises `FormatError` if it is invalid."""
    service = _service_account()
    return GoogleAccount(
        _first("GOOGLE_BASE_URL") or str(service.get("gcs_base_url", "")),
        service,
        _first("GOOGLE_BEARER_TOKEN"),
        _is_on("GOOGLE_SKIP_SIGNATURE") or service.get("disable_oauth") is True,
    )


def _service_account() -> Mapping[str, Any]:
    text = _first("GOOGLE_SERVICE_ACCOUNT_KEY")
    path = _first("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
    if not text and not path:
        return {}
    try:
        if not text:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        found = json.loads(text)
    except (OSError, ValueError) as error:
        # The error's own text is not shown, since it may contain the key.
        raise _refusal("gs", f"{path or 'GOOGLE_SERVICE_ACCOUNT_KEY'} cannot be read") from error
    if not is_object(found):
        raise _refusal("gs", f"{path or 'GOOGLE_SERVICE_ACCOUNT_KEY'} is not a JSON object")
    return found


def azure_account() -> AzureAccount:
    """Return the account in the environment; raises `FormatError` if it is not named."""
    parts = _connection_string()
    if _is_on("AZURE_STORAGE_USE_EMULATOR") or parts.get("usedevelopmentstorage") == "true":
        name = _first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT") or _EMULATOR
        parts = {
            "accountname": name,
            "accountkey": _EMULATOR_KEY if name == _EMULATOR else "",
            "blobendpoint": f"{_first('AZURITE_BLOB_STORAGE_URL') or _EMULATOR_URL}/{name}",
        }
    name = _first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT") or parts.get(
        "accountname", ""
    )
    endpoint = _first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT") or parts.get("blobendpoint", "")
    if not name and not endpoint:
        raise _refusal("az", "no storage account is named")
    suffix = parts.get("endpointsuffix", "core.windows.net")
    protocol = parts.get("defaultendpointsprotocol", "https")
    signature = _first("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY") or parts.get(
        "sharedaccesssignature", ""
    )
    key = _first(
        "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY",
        "AZURE_STORAGE_KEY",
    ) or parts.get("accountkey", "")  # fmt: skip
    return AzureAccount(
        name,
        (endpoint or f"{protocol}://{name}.blob.{suffix}").rstrip("/"),
        key,
        "" if key else signature.removeprefix("?"),
        _first("AZURE_STORAGE_TOKEN"),
        _is_on("AZURE_SKIP_SIGNATURE"),
    )


def _connection_string() -> dict[str, str]:
    """Return the fields of the connection string, with their names in lower case."""
    fields = (
        field.partition("=") for field in _first("AZURE_STORAGE_CONNECTION_STRING").split(";")
    )
    return {name.strip().lower(): value.strip() for name, _, value in fields if value}


def _first(*names: str) -> str:
    """Return the value of the first environment variable that is set; empty if none is."""
    return next(filter(None, map(os.environ.get, names)), "")


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "on", "t", "true", "y", "yes"}


def _refusal(scheme: str, reason: str) -> FormatError:
    hints = {
        "gs": "check GOOGLE_SERVICE_ACCOUNT, the path of a service account's JSON file",
        "az": "set AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_CONNECTION_STRING",
    }
    return FormatError(f"{scheme}://", None, reason, hint=hints[scheme])
