"""The patterns that MLIR's canonicalizer applies to ops of the SDY dialect."""
