"""The numbered SQL files that make and upgrade an installation."""
