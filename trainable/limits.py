"""What several tasks say of their fields alike: shares of a split, sizes of a network. Imports no torch."""

from __future__ import annotations


def check_shares(val_share: float, test_share: float) -> None:
    """Raises ValueError where nothing would be left for train or val."""
    if not (0 < val_share < 1 and 0 <= test_share < 1 and val_share + test_share < 1):
        raise ValueError(
            f"val_share={val_share} must be above 0, test_share={test_share} at least 0, and together below 1"
        )


def check_network(width: int, depth: int, dropout: float) -> None:
    """Raises ValueError for what is no network."""
    if width < 1 or depth < 0:
        raise ValueError(f"width={width} must be at least 1 and depth={depth} at least 0")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be at least 0 and below 1")
