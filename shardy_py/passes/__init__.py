"""Passes over a program, named after Shardy's and equal to them."""
