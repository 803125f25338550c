"""Which learning rate: how rates are written and found, the speed of descent, the answer of a scan."""
