"""Signs statements with elliptic curve keys, and checks signatures, as `model_signing` does.

A signed statement is a Sigstore bundle with a DSSE envelope.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError
from weightctl.storage.files import read_start
from weightctl.system.registry import load, name_install

if TYPE_CHECKING:
    from collections.abc import Mapping

_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD = "application/vnd.in-toto+json"
_LARGEST_KEY = 1 << 16
# The hash of a signature, by the bits of the curve. The package is optional.
_HASHES = {256: "SHA256", 384: "SHA384", 521: "SHA512"}
_PACKAGE = "cryptography.hazmat.primitives"


def sign(statement: bytes, key: str) -> dict[str, Any]:
    """Return a bundle with a statement and its signature by the private key in a PEM file."""
    private = read_key(key, "private", None)
    signature = private.sign(_encode(statement), _algorithm(private))
    envelope: dict[str, Any] = {"payload": b64encode(statement).decode(), "payloadType": _PAYLOAD}
    envelope |= {"signatures": [{"sig": b64encode(signature).decode(), "keyid": ""}]}
    hint = _fingerprint(private.public_key())
    material: dict[str, Any] = {"publicKey": {"hint": hint}, "tlogEntries": []}
    return {"mediaType": _BUNDLE, "verificationMaterial": material, "dsseEnvelope": envelope}


def open_bundle(bundle: Mapping[str, Any], key: str | None) -> tuple[Any, str]:
    """Return the statement in a bundle, and why its signature is not that of a public key.

    The reason is empty if it is, or if there is no `key`, the path of a PEM file. Raises
    `LookupError`, `TypeError` or `ValueError` if the bundle is damaged.
    """
    payload = b64decode(bundle["dsseEnvelope"]["payload"], validate=True)
    statement: Any = json.loads(payload)
    if key is None:
        return statement, ""
    public, material = read_key(key, "public"), bundle["verificationMaterial"]
    if "publicKey" not in material:
        return statement, "it is signed with a certificate; check it with `model_signing verify`"
    own, hint = _fingerprint(public), str(material["publicKey"].get("hint") or "unknown")
    (signature,) = bundle["dsseEnvelope"]["signatures"]
    raw = b64decode(signature["sig"], validate=True)
    try:
        public.verify(raw, _encode(payload), _algorithm(public))
    except load("cryptography.exceptions:InvalidSignature"):
        if hint == own:
            return statement, f"it was changed after it was signed with {key}"
        return statement, f"it is signed with another key than {key}: {hint:.64}, not {own}"
    return statement, ""


def read_key(path: str, kind: str, *password: None) -> Any:
    """Return a key in a PEM file; `kind` is "private" or "public".

    Raises `ConversionError` if it cannot be used, or if the optional package is not installed.
    """
    try:
        read = load(f"{_PACKAGE}.serialization:load_pem_{kind}_key")
    except ImportError as error:
        raise ConversionError(
            "signatures need the package cryptography, which is not installed",
            hint=f"install it: {name_install('sign')}",
        ) from error
    try:
        found = read(read_start(path, _LARGEST_KEY), *password)
        _ = _HASHES[found.curve.key_size]
    except (OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConversionError(
            f"{path} is not a file with a {kind} key of the curve P-256, P-384 or P-521",
            hint="make a key with `openssl ecparam -name prime256v1 -genkey -noout -out KEY`, and "
            "its public key with `openssl ec -in KEY -pubout -out PUBLIC`",
        ) from error
    return found


def _algorithm(key: Any) -> Any:
    made = load(f"{_PACKAGE}.hashes:{_HASHES[key.curve.key_size]}")()
    return load(f"{_PACKAGE}.asymmetric.ec:ECDSA")(made)


def _fingerprint(public: Any) -> str:
    """Return the SHA-256 of a public key in PEM, by which bundles name it."""
    names = load(f"{_PACKAGE}.serialization")
    raw = public.public_bytes(names.Encoding.PEM, names.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(raw).hexdigest()


def _encode(payload: bytes) -> bytes:
    """Return what is signed: DSSE's encoding of a payload and its type."""
    return f"DSSEv1 {len(_PAYLOAD)} {_PAYLOAD} {len(payload)} ".encode() + payload
