"""Turns a program over whole tensors into the program that one device runs; the pass is in `convert`, the ops are in `table`."""
