"""Built-in tasks. Each module here defines one task; its name is the module's name."""
