"""Turns a program over whole tensors into the program that one device runs; `run` is in `convert`, the ops are in `table`."""

from shardy_py.passes.partitioner.convert_global_to_local.convert import NAME as NAME
from shardy_py.passes.partitioner.convert_global_to_local.convert import run as run
