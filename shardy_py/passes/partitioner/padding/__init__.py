"""How ops change when their operands and results are padded to sizes that their shardings divide."""
