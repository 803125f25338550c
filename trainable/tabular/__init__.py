"""What the table task is made of: reading a CSV, what its columns are, numbers from them. Knows no training."""
