"""Delivering messages to the handlers of consumer groups."""
