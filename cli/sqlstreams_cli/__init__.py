"""The `sqlstreams` command."""
