"""What comes after training: a model's outcomes on samples that it never saw, its export, and what monitoring needs."""
