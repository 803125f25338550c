"""python -m sweeps.release.reload FOLDER GIVEN CAME: load a packed model in this fresh process, and call it.

What a server would do with it; asked by packaging.py, which compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from sweeps.release.packaging import load_folder
from trainable.release.export import flat


def main(folder: str, given: str, came: str) -> None:
    """given: a list of lists of tensors, one for each call; came: the same of what the calls gave back."""
    model = load_folder(Path(folder))
    with torch.inference_mode():
        outputs = [list(flat(model(*batch)) or ()) for batch in torch.load(given, weights_only=True)]
    torch.save(outputs, came)


if __name__ == "__main__":
    main(*sys.argv[1:])
