"""Many trials: a question, a space, an answer. Nothing is imported here."""
