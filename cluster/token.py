"""Ray's token: one of its own for the Ray that is started here, and the user's for a cluster that is joined.

Ray would keep its own in the home folder, the same for every cluster, and would not offer one unless its mode is set
too. Knows nothing of sweeps.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


@contextlib.contextmanager
def own_token() -> Iterator[None]:
    """Ray that is started inside asks for a token that only this process and what Ray starts know.

    In the environment while Ray starts, as that is how its processes are told; this process's own Ray remembers it
    until `read_again`. Who has set RAY_AUTH_MODE has decided: for none, or for a token that may be the user's.
    """
    mode = os.environ.get(MODE)
    if mode is not None and (mode != "token" or has_token()):
        yield
        return
    before = {name: os.environ.get(name) for name in (MODE, TOKEN)}
    os.environ |= {MODE: "token", TOKEN: secrets.token_hex(32)}
    read_again()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def offered_token() -> Iterator[None]:
    """A cluster that is joined inside is offered the token that the user has. Only for a cluster that asks for one: any
    other would be refused by this process, as it has none to offer."""
    if os.environ.get(MODE) == "token":
        yield
        return
    os.environ[MODE] = "token"
    read_again()
    try:
        yield
    finally:
        del os.environ[MODE]


def has_token() -> bool:
    """Whether the user has a token where Ray looks for it."""
    named = os.environ.get(TOKEN) or os.environ.get(TOKEN_FILE)
    return bool(named) or (Path.home() / ".ray/auth_token").is_file()


def read_again() -> None:
    """Have Ray read mode and token anew, which it does once in a process; this may be its second Ray."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled

    if os.environ.get(MODE) == "token" and not has_token():
        return  # Ray would end this process; what it remembers does no harm
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
