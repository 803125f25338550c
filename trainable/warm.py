"""Import what every trial needs, before there is a trial: a worker process does it while others still start.

Knows nothing of trials.
"""

from __future__ import annotations


def preload() -> None:
    """Import torch, its compiler's front end (any optimizer imports it) and Tune's trainable."""
    import torch._dynamo  # noqa: F401

    import trainable.loop
    import trainable.trial  # noqa: F401
