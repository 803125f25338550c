"""A sweep under way: from a definition to its trials on Ray, to its end."""
