"""Damaged modules and plan files: refused in the library's own words, or taken and used without harm."""
