"""What trials come to: ranked, over seeds, in words, tables and figures."""
