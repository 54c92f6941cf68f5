"""The demo: real time-zone changes travelling through a stream."""
