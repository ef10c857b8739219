"""Runs plans on devices."""
