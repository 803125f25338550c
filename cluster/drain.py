"""Which nodes of a cluster have been given notice: Ray's drain notice, which SIGTERM of `ray start --block`, an
autoscaler that takes a node back, and `ray drain-node` all lead to. Knows nothing of sweeps or trials."""

from __future__ import annotations

import time

LOOK_EVERY_S = 1.0


class Notices:
    """The nodes that are to leave, asked of Ray now and then."""

    def __init__(self) -> None:
        self._asked_at = 0.0
        self._known: set[str] = set()

    def new(self) -> set[str]:
        """Ids (hex) of nodes that have got notice since the last call."""
        now = time.monotonic()
        if now - self._asked_at < LOOK_EVERY_S:
            return set()
        self._asked_at = now
        import ray

        if ray.util.client.ray.is_connected():  # a driver behind ray:// is not told
            return set()
        try:
            draining = set(ray._private.state.state.get_draining_nodes())
        except ray.exceptions.RayError:  # a head that is too busy to answer; it is asked again
            return set()
        found, self._known = draining - self._known, self._known | draining
        return found
