"""Tests that keep a bridge busy for a while."""
