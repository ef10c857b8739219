"""The parts of `sdy-insert-explicit-reshards`: which sharding an op runs under, and what is inserted to get there."""
