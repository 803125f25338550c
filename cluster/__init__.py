"""Where trials run: this machine, or a cluster. Knows nothing of sweeps or of training."""
