"""How an op runs on the devices of a mesh, what moves for it, and what both cost."""
