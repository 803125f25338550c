"""An object store by its address, s3://bucket/folder or gs://bucket/folder: list, read, write, delete, copy folders.

The one place that knows pyarrow's file systems, which Tune uses too. A store that does not answer is waited for.
Knows nothing of what is stored. Keys never stand in an address: each machine finds its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

WAIT_S = 300.0  # how long a store that went away is waited for
RETRY_S = 1.0
CONNECT_S, REQUEST_S = 5.0, 60.0
EXAMPLE = "s3://bucket/folder or gs://bucket/folder"
OPTIONS = {"s3": ("endpoint_override", "region", "scheme"), "gs": ("endpoint_override", "scheme")}
KEYS = {
    "s3": "they come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, from ~/.aws, or from the machine's role",
    "gs": "they come from GOOGLE_APPLICATION_CREDENTIALS, from gcloud's login, or from the machine's account",
}
# What stores, and the libraries that talk to them, say of a store that is away or overrun, and may be back.
_AWAY = re.compile(
    r"NETWORK_CONNECTION|curlCode|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|THROTTLING|"
    r"HTTP status (500|502|503|504)|UNAVAILABLE|Timed? ?out|timeout|Connection (refused|reset)|Could not connect",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|bucket does not exist|HTTP status 404|NOT_FOUND", re.IGNORECASE)
_NO_RIGHTS = re.compile(
    r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|"
    r"SignatureDoesNotMatch|INVALID_CLIENT_TOKEN_ID|InvalidClientTokenId|EXPIRED_TOKEN|ExpiredToken|"
    r"UNRECOGNIZED_CLIENT|HTTP status 40[13]|PERMISSION_DENIED|UNAUTHENTICATED|credentials",
    re.IGNORECASE,
)

T = TypeVar("T")


class StoreLost(OSError):
    """The object store went away and did not come back in time."""


class StoreRefuses(OSError):
    """The object store answers, and does not let us: no such bucket, no right."""


def is_address(place: str) -> bool:
    """Whether it names an object store, and not a folder."""
    return "://" in place


def checked_address(given: str, flag: str = "--storage") -> str:
    """An address that may be printed and stored, without a slash at its end. Raises ValueError, in a sentence."""
    scheme, _, rest = given.partition("://")
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    bucket = place.partition("/")[0]
    # An address with a secret in it is not printed.
    shown = f"{scheme}://...@{place.rpartition('@')[2]}" if "@" in place else f"{scheme}://{place}"
    if scheme not in OPTIONS:
        raise ValueError(
            f"{flag} {shown if rest else given} must be {EXAMPLE}; a folder that all nodes share is named by --results"
        )
    if "@" in place or any("key" in name.lower() or "secret" in name.lower() for name in options):
        raise ValueError(
            f"{flag} {shown}: keys in the address would be seen by everybody who lists processes, and stored; leave "
            f"them out: {KEYS[scheme]}"
        )
    if not bucket:
        raise ValueError(f"{flag} {given} names no bucket; it must be {EXAMPLE}")
    if unknown := sorted(set(options) - set(OPTIONS[scheme])):
        raise ValueError(
            f"{flag} {given}: what stands after the ? may be {', '.join(OPTIONS[scheme])}, not {', '.join(unknown)}"
        )
    if any(part in (".", "..") for part in place.split("/")):
        raise ValueError(f"{flag} {given}: a folder in a store may not be called . or ..")
    path = re.sub("/+", "/", place).rstrip("/")
    return f"{scheme}://{path}?{query}" if query else f"{scheme}://{path}"


def below(address: str, *names: str) -> str:
    """The address of what is in a folder of a store."""
    place, mark, query = address.partition("?")
    return f"{'/'.join([place, *names])}{mark}{query}"


def above(address: str) -> str:
    """The address of the folder that something is in."""
    place, mark, query = address.partition("?")
    return f"{place.rpartition('/')[0]}{mark}{query}"


class Objects:
    """All objects below an address, by names relative to it, such as `trials/00001-attempt-1/stacks.txt`.

    wait_s: how long a store that does not answer is waited for, before StoreLost; say: who is told.
    Errors are StoreLost, StoreRefuses, and FileNotFoundError for an object that is not there.
    """

    def __init__(self, address: str, *, wait_s: float = WAIT_S, say: Callable[[str], None] | None = None) -> None:
        self.address = checked_address(address)
        self._wait_s = wait_s
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))

    @functools.cached_property
    def filesystem(self) -> Any:
        """pyarrow's, for Tune too. It finds its keys where it is used."""
        return self.patiently(lambda: _filesystem(self.address))

    @property
    def path(self) -> str:
        """The address as that file system is told it: bucket/folder."""
        return self.address.partition("://")[2].partition("?")[0]

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Every object below a folder, by its name from here: its size in bytes."""
        from pyarrow.fs import FileSelector, FileType

        top = posixpath.join(self.path, folder) if folder else self.path
        found = self.patiently(
            lambda: self.filesystem.get_file_info(FileSelector(top, recursive=True, allow_not_found=True))
        )
        return {
            entry.path.removeprefix(f"{self.path}/"): int(entry.size) for entry in found if entry.type == FileType.File
        }

    def folders(self) -> list[str]:
        """The names of the folders right below."""
        from pyarrow.fs import FileSelector, FileType

        found = self.patiently(
            lambda: self.filesystem.get_file_info(FileSelector(self.path, recursive=False, allow_not_found=True))
        )
        return [str(entry.base_name) for entry in found if entry.type == FileType.Directory]

    def exists(self, name: str) -> bool:
        from pyarrow.fs import FileType

        info = self.patiently(lambda: self.filesystem.get_file_info(posixpath.join(self.path, name)))
        return bool(info.type == FileType.File)

    def read(self, name: str) -> bytes:
        def act() -> bytes:
            with self.filesystem.open_input_stream(posixpath.join(self.path, name)) as source:
                return bytes(source.read())

        return self.patiently(act)

    def write(self, name: str, data: bytes) -> None:
        """Whole or not at all, as stores do it; replaces what was there."""

        def act() -> None:
            with self.filesystem.open_output_stream(posixpath.join(self.path, name)) as target:
                target.write(data)

        self.patiently(act)

    def delete(self, name: str) -> None:
        """Nothing happens where there is none."""

        def act() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(posixpath.join(self.path, name))

        self.patiently(act)

    def fetch(self, name: str, to: Path) -> None:
        """Copy an object into a file, which is there when it is whole."""

        def act() -> None:
            from pyarrow.fs import LocalFileSystem, copy_files

            to.parent.mkdir(parents=True, exist_ok=True)
            beside = to.with_name(f"{to.name}.part")
            copy_files(
                posixpath.join(self.path, name),
                str(beside),
                source_filesystem=self.filesystem,
                destination_filesystem=LocalFileSystem(),
                chunk_size=16 * 2**20,
            )
            os.replace(beside, to)

        self.patiently(act)

    def patiently(self, act: Callable[[], T]) -> T:
        """What `act` returns; it is done again while the store is away, so it must bear that."""
        began: float | None = None
        while True:
            try:
                found = act()
            except FileNotFoundError:
                raise
            except (OSError, ValueError) as error:
                if not is_away(error):
                    refused = why_refused(error, self.address)
                    if refused is None:
                        raise
                    raise StoreRefuses(refused) from error
                if began is None:
                    began = time.monotonic()
                    if self._wait_s:
                        self._say(
                            f"the object store does not answer ({first_line(error)}); waiting for it, for at most "
                            f"{self._wait_s:g} s"
                        )
                if time.monotonic() - began >= self._wait_s:
                    waited = f"for {self._wait_s:g} s " if self._wait_s else ""
                    raise StoreLost(
                        f"the object store {self.address} did not answer {waited}({first_line(error)})"
                    ) from error
                time.sleep(RETRY_S)
            else:
                if began is not None:
                    self._say("the object store is back; nothing was lost")
                return found


def is_away(error: BaseException) -> bool:
    """Whether an error says that a store is out of reach, and not that it refuses."""
    told = isinstance(error, StoreLost | StoreRefuses)  # it was waited for already, or answered
    return isinstance(error, OSError) and not told and bool(_AWAY.search(str(error)))


def why_refused(error: BaseException, address: str) -> str | None:
    """What a store that answers has against us, in a sentence; None for any other error."""
    scheme = address.partition("://")[0]
    bucket = address.partition("://")[2].partition("/")[0].partition("?")[0]
    if _NO_RIGHTS.search(str(error)):
        return (
            f"the object store {address} refuses the keys of this machine, or their right to do this "
            f"({first_line(error)}); {KEYS[scheme]}"
        )
    if _NO_BUCKET.search(str(error)):
        return f"the object store {address} has no bucket {bucket!r}, or not in that region; make it first"
    return None


def first_line(error: BaseException) -> str:
    """What was wrong, without the request's own numbers."""
    said = " ".join(str(error).split())
    found = re.search(r"(AWS Error .*|google::.*)", said)
    said = re.sub(r" \(Request ID:.*?\)", "", found.group() if found else said)
    return said.partition("; Details:")[0][:300]


def try_out(address: str, *, wait_s: float = 0.0) -> None:
    """Write an object, read it back, list and delete it. Raises ValueError, in a sentence, where that fails."""
    name, data = f".steadysweep-{os.urandom(8).hex()}", os.urandom(64)
    objects = Objects(address, wait_s=wait_s)
    try:
        objects.write(name, data)
        same = objects.read(name) == data and objects.sizes().get(name, len(data)) == len(data)
        objects.delete(name)
    except FileNotFoundError as error:
        raise ValueError(f"the object store {address} does not keep what is written to it ({error})") from error
    except (StoreLost, StoreRefuses) as error:
        raise ValueError(str(error)) from error
    except (OSError, ValueError) as error:  # pyarrow's own word for bad input is a ValueError
        raise ValueError(f"the object store {address} cannot be used: {first_line(error)}") from error
    if not same:
        raise ValueError(f"the object store {address} gave back something else than was written")


def _filesystem(address: str) -> Any:
    from pyarrow import fs

    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query))
    endpoint, scheme = options.get("endpoint_override"), options.get("scheme")
    if parts.scheme == "gs":
        return fs.GcsFileSystem(endpoint_override=endpoint, scheme=scheme)
    # pyarrow itself does not look for the address of a store of one's own where Amazon's own tools do.
    given = None if endpoint else os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if given:
        named = urlsplit(given)
        endpoint, scheme = named.netloc, named.scheme
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None:
        region = "us-east-1" if endpoint else fs.resolve_s3_region(parts.netloc)
    return fs.S3FileSystem(
        region=region,
        endpoint_override=endpoint,
        scheme=scheme or "https",
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
        allow_delayed_open=True,  # what is small is one request, and not three
    )
