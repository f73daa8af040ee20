"""Tables that turn the errors of transports into errors of weightctl, without secrets.

`READING` has what obstore says of requests for web servers and buckets. `WRITING` has the codes of
Amazon S3, Google Cloud Storage and Azure Blob Storage, and `HUB` and `HUB_WRITING` those of the
Hugging Face Hub.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from weightctl.errors import FormatError, MissingFileError, OutputError
from weightctl.storage.location import STORAGES

if TYPE_CHECKING:
    from collections.abc import Collection

HUB_LOGIN = "set HF_TOKEN, or log in with `hf auth login`"
LOGIN_HINTS = {
    "hf": f"{HUB_LOGIN}; for some models, you must also ask for access on their page",
    "s3": "check AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN "
    "for temporary credentials; for a public bucket, use --anonymous",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, or log in with `gcloud auth application-default "
    "login`; for a public bucket, use --anonymous",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_"
    "TOKEN; for a public container, use --anonymous",
    "http": "the server requires a login, or the link has expired",
}
NETWORK_HINT = "check the network connection and try again"
_REPLACE_HINT = "to replace it, use --force (force=True in Python)"
_DOWNLOAD_HINT = "download the file with another program first"
_ADDRESS_HINT = "check the URL"
_LATER_HINT = "try again later"


class MissingBucketError(Exception):
    """The bucket does not exist."""


class ChangedObjectError(Exception):
    """The object has changed since it was opened."""


class ExistingObjectError(OutputError):
    """The object exists, and must not be replaced."""


class MissingObjectError(OutputError):
    """The object does not exist."""


class MissingUploadError(OutputError):
    """The upload does not exist."""


class UnsupportedError(OutputError):
    """The store does not support an operation, or cannot read the source of a copy."""


class DeniedError(OutputError):
    """The account does not have access."""


class ChangedSourceError(OutputError):
    """The source of a copy has changed since it was opened."""


class ExistingModelError(OutputError):
    """A model could not be created, since a model of this name exists."""


class NewerCommitError(OutputError):
    """The parent of a commit is not the newest commit."""


class Failure(NamedTuple):
    """A failed request, by a pattern of obstore's text; a final one would fail again."""

    pattern: str
    reason: str
    hint: str
    is_final: bool = True


NO_BUCKET = Failure(
    "NoSuchBucket|ContainerNotFound|bucket does not exist",
    "the bucket does not exist",
    "check the name of the bucket, and the endpoint",
)
# The address at which a machine of a cloud asks for its credentials.
NO_CREDENTIALS = Failure(
    r"//169\.254\.169\.254/",
    "no credentials were found",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket, use "
    "--anonymous",
)
READING = (
    NO_BUCKET,
    NO_CREDENTIALS,
    Failure("UnexpectedRange|NoContentRange|ParseContentRange",
            "the server sends another range than was requested", _DOWNLOAD_HINT),
    Failure("MissingContentLength", "the server does not state the length of the file",
            _DOWNLOAD_HINT),
    Failure("InvalidListResponse", "the answer is not a list of files", _ADDRESS_HINT, False),
    Failure("TooManyRedirects", "the redirects of the server do not end", _ADDRESS_HINT),
    Failure(r"BadScheme|status code: 3\d\d |redirect without LOCATION",
            "the server redirects to an address that cannot be read",
            "check the URL, and for buckets the region"),
    Failure(r"Parse\(\s*TooLarge", "the headers of the answer are too large", _ADDRESS_HINT),
    Failure(r"hyper::Error\(\s*Parse", "the answer is not HTTP", _ADDRESS_HINT),
    Failure("Name or service not known|nodename nor servname|No address associated",
            "the host does not exist",
            "check the network, and the host in the URL or, for s3://, in AWS_ENDPOINT_URL"),
    Failure("InvalidCertificate|UnknownIssuer|invalid peer certificate",
            "the certificate of the server is not valid", "check the URL and the clock"),
    Failure("dns error", "the name of the host cannot be looked up", NETWORK_HINT, False),
    Failure("ConnectionRefused", "the server refuses connections", "check the port in the URL",
            False),
    Failure("kind: Timeout|TimedOut", "timed out after {timeout:g} s", NETWORK_HINT, False),
    Failure("IncompleteMessage|ConnectionReset|BrokenPipe|UnexpectedEof",
            "the server closed the connection", NETWORK_HINT, False),
    Failure(r"status code: (?:400|405|409|41[01346]|451) ",
            "the server refuses the request with status {status}", _ADDRESS_HINT),
    Failure(r"status code: \d\d\d ", "the server answers with status {status}", _LATER_HINT,
            False),
)  # fmt: skip


class Refusal(NamedTuple):
    """A refused request, by its names: error codes, statuses, and kinds of errors.

    One of the names, which are separated by spaces, is enough. `reason` and `hint` have words in
    braces. `kind` is the error of a refused change.
    """

    names: str
    reason: str
    hint: str
    kind: type[OutputError] = OutputError


# Kinds of errors of obstore, of weightctl and of Python.
_KINDS = (
    Refusal("FileNotFoundError", "No such file or directory", _ADDRESS_HINT),
    Refusal("ChangedObjectError PreconditionError", "it changed while it was read",
            "try again when nothing writes to it"),
    Refusal("AlreadyExistsError", "it exists", _REPLACE_HINT),
    Refusal("UnauthenticatedError", "the server did not accept the credentials", "{login}"),
    Refusal("PermissionDeniedError", "access is denied", "{login}"),
    Refusal("NotSupportedError", "the server does not support range requests",
            "download the file first; on a web server, use the URL of a file, not of a directory"),
    Refusal("MissingBucketError", NO_BUCKET.reason, NO_BUCKET.hint),
    Refusal("TimeoutError", "the server did not answer in time", NETWORK_HINT),
)  # fmt: skip
WRITING = (
    Refusal("NoSuchUpload", ": the upload does not exist any more", "run the command again",
            MissingUploadError),
    Refusal("SourceConditionNotMet", " cannot be written: the source of a copy changed",
            NETWORK_HINT, ChangedSourceError),
    Refusal("NotImplemented 501 MethodNotAllowed 405 CannotVerifyCopySource UnsupportedHeader",
            " cannot be written: the store does not support {code}", "use another store",
            UnsupportedError),
    Refusal("PreconditionFailed ConditionalRequestConflict 412 ResourceExistsError "
            "ResourceModifiedError", " exists", _REPLACE_HINT, ExistingObjectError),
    Refusal("AccessDenied 403 401 InvalidAccessKeyId SignatureDoesNotMatch ExpiredToken "
            "InvalidToken", ": access is denied ({code})", "{login}", DeniedError),
    Refusal("NoSuchBucket", ": the bucket does not exist", _ADDRESS_HINT),
    Refusal("ContainerNotFound", ": the container does not exist", _ADDRESS_HINT),
    Refusal("NoSuchKey 404 NotFound ResourceNotFoundError", " does not exist", _ADDRESS_HINT,
            MissingObjectError),
    Refusal("NoCredentials ClientAuthenticationError", ": no credentials were found", "{login}"),
    Refusal("InvalidBlobOrBlock InvalidBlockId",
            " cannot be written: another tool has begun to upload an object of this name",
            "use another name; the store removes the unfinished upload after a week"),
)  # fmt: skip
_UNKNOWN = Refusal("", " cannot be written: {code}", NETWORK_HINT)
_MODEL = "the model {repository}"
# The cases are those of the Hub's client.
HUB = (
    Refusal("GatedRepo", f"{_MODEL} requires that you accept its conditions",
            "accept them on its page, {page}{then_login}"),
    Refusal("RevisionNotFound", f"{_MODEL} has no revision `{{revision}}`",
            "check the revision; hf://{repository} is the main branch"),
    Refusal("EntryNotFound", "No such file or directory", _ADDRESS_HINT),
    Refusal("WrongToken", "the Hugging Face Hub did not accept the token",
            f"{HUB_LOGIN}; for a public model, use --anonymous"),
    Refusal("RepoNotFound 401 404",
            f"{_MODEL} does not exist on the Hugging Face Hub, or is private",
            "check the name{and_access}"),
    Refusal("Disabled", f"the Hugging Face Hub has disabled {_MODEL}", "its page says why: {page}"),
    Refusal("429", "the Hugging Face Hub allows no more requests for now",
            "try again in some minutes{more_login}"),
    Refusal("403", "access is denied", f"check the permissions of your token, or {HUB_LOGIN}"),
)  # fmt: skip
HUB_UNKNOWN = Refusal("", "the Hugging Face Hub answered with status {status}", _LATER_HINT)
HUB_WRITING = (
    Refusal("412", f"{{url}} cannot be written: {_MODEL} was changed during the run",
            "run the command again; what was uploaded is not sent again", NewerCommitError),
    Refusal("409", f"{_MODEL} exists", "", ExistingModelError),
    Refusal("WrongToken", "{url}: the Hugging Face Hub did not accept the token",
            f"{HUB_LOGIN} again"),
    Refusal("Explained", "{url}: the Hugging Face Hub refused the commit: {text}",
            "correct the cause that the Hub states, and run the command again"),
    Refusal("Forbidden", f"{{url}}: the token may not write to {_MODEL}",
            "check the name, and use a token with the permission to write"),
)  # fmt: skip


def read_timeout() -> float:
    """Return the number of seconds without data after which a connection is closed."""
    return float(os.environ.get("WEIGHTCTL_TIMEOUT", "30"))


def find_refusal(refusals: Collection[Refusal], names: set[str]) -> Refusal | None:
    """Return the first row that has one of the names; None if no row applies."""
    return next((each for each in refusals if not names.isdisjoint(each.names.split())), None)


def translate_refusal(path: str, code: str, names: set[str]) -> OutputError:
    """Return the error to raise for a refused change of a bucket, by the names of the refusal.

    The text of the library is left out, since it may have signed URLs.
    """
    found = find_refusal(WRITING, names) or _UNKNOWN
    login = LOGIN_HINTS[path.partition("://")[0].lower()]
    return found.kind(path + found.reason.format(code=code), hint=found.hint.format(login=login))


def find_failure(error: BaseException) -> Failure | None:
    """Return the row of `READING` for an error of obstore; None if no row applies."""
    text = str(error)
    return next((each for each in READING if re.search(each.pattern, text)), None)


def has_status(error: Exception, *statuses: int) -> bool:
    """Whether an error of obstore is an answer with one of these statuses."""
    # obstore only gives the status in the error's text.
    return any(f"status code: {status} " in str(error) for status in statuses)


def translate_error(
    error: BaseException, path: str, action: Literal["read", "written", "listed"] = "read"
) -> FormatError | OutputError:
    """Return the error to raise for a failed request, without credentials in its text."""
    if isinstance(error, FormatError) and action != "written":
        return error  # raised by weightctl, with a hint
    reason, hint = _explain(error, path)
    if action == "written":
        return OutputError(f"{path} cannot be written: {reason}", hint=hint)
    if isinstance(error, FileNotFoundError | MissingBucketError):
        return MissingFileError(path, None, reason, hint=hint)
    return FormatError(path, None, f"cannot be {action}: {reason}", hint=hint)


def _explain(error: BaseException, path: str) -> tuple[str, str]:
    scheme = path.partition("://")[0].lower().replace("https", "http")
    login = LOGIN_HINTS.get(scheme, LOGIN_HINTS["http"])
    if scheme in STORAGES and STORAGES[scheme].anonymous in os.environ:
        login = login.partition("; for a public")[0]
    names = {kind.__name__ for kind in type(error).__mro__}
    if refusal := find_refusal(_KINDS, names):
        return refusal.reason, refusal.hint.format(login=login)
    if failure := find_failure(error):
        status = re.search(r"status code: (\d\d\d) ", str(error))
        words = {"timeout": read_timeout(), "status": status[1] if status else ""}
        return failure.reason.format(**words), failure.hint
    return _shorten(error), NETWORK_HINT


def _shorten(error: BaseException) -> str:
    """Return the first line of an error's text, without URLs, which may have signatures."""
    line = str(error).strip().partition("\n")[0]
    words = ["(URL)" if "://" in word else word for word in line.split()]
    return " ".join(words)[:300] or type(error).__name__
