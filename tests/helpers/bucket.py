"""A server of S3's protocol on loopback, in a process of its own, behind a door that can be shut in its face.

Its objects live in its memory and go with it. It is moto's: real requests, real signatures where rights are asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

KEYS = {
    "AWS_ACCESS_KEY_ID": "key-of-these-tests",
    "AWS_SECRET_ACCESS_KEY": "secret-of-these-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
}
NAME = "sweeps-of-these-tests"


class Door:
    """Passes connections on to a port. Shut, it refuses new ones and cuts those there are. Mutable."""

    def __init__(self, to_port: int) -> None:
        self._to = to_port
        self._open: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut(self) -> None:
        assert self._listener is not None
        # shutdown wakes who waits in accept; close alone would let one more in.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open = []

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Bucket:
    """The server with one bucket. strict: after so many requests, rights are asked for."""

    name = NAME

    def __init__(self, strict: int | None = None) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port: int = found.getsockname()[1]
        extra = {} if strict is None else {"INITIAL_NO_AUTH_ACTION_COUNT": str(strict)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)],
            env={**os.environ, **KEYS, **extra},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                break
            time.sleep(0.05)
        self.door = Door(self._port)
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/{NAME}", method="PUT")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request")
        urllib.request.urlopen(request, timeout=30).close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.door.port}"

    def environment(self) -> dict[str, str]:
        """What a process needs to get in."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    def address(self, folder: str = "results") -> str:
        return f"s3://{NAME}/{folder}"

    def let_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have this process use it."""
        for name, value in self.environment().items():
            monkeypatch.setenv(name, value)

    def keys_of(self, person: str, *actions: str) -> dict[str, str]:
        """The environment of somebody who may do these; of a strict server, once, and before it asks for rights."""
        people = self.client("iam")
        people.create_user(UserName=person)
        own = people.create_access_key(UserName=person)["AccessKey"]
        allowed = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        people.put_user_policy(UserName=person, PolicyName="own", PolicyDocument=policy)
        return {
            **self.environment(),
            "AWS_ACCESS_KEY_ID": own["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": own["SecretAccessKey"],
        }

    def client(self, service: str = "s3") -> Any:
        """Amazon's own client, past the door: another look at what is there than ours."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=f"http://127.0.0.1:{self._port}",
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )

    def objects(self, folder: str = "results") -> dict[str, bytes]:
        """Everything below a folder: name -> content."""
        client = self.client()
        folder = f"{folder}/" if folder else ""
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=NAME, Prefix=folder)
        names = [entry["Key"] for page in pages for entry in page.get("Contents", []) if not entry["Key"].endswith("/")]
        return {name.removeprefix(folder): client.get_object(Bucket=NAME, Key=name)["Body"].read() for name in names}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.door.shut()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def bucket_server(strict: int | None = None) -> Iterator[Bucket]:
    bucket = Bucket(strict)
    try:
        yield bucket
    finally:
        bucket.close()
