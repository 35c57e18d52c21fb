"""Decisions: pure objects that take events and the time, and give back commands and facts."""
