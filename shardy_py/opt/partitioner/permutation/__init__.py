"""Makes ops whose elements change places along a sharded dimension run on parts."""
