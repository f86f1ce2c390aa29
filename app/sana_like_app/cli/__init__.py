"""The `sana-like` command line."""
