"""What the char_lm task is made of: a text in parts, windows of it, a small transformer. Knows no training."""
