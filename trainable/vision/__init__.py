"""What the image tasks are made of: official sets, folders, networks, random moves. Knows no training."""
