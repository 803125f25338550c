"""One trial in this process, without Ray: what `python -m trainable` does."""
