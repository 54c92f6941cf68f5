"""Appending messages to a stream's log."""
