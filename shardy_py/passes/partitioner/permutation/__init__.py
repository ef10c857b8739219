"""How ops whose elements change places along a sharded dimension are made to run on parts."""
