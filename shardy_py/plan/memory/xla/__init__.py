"""The steps that XLA carries out for the ops of a program, as nodes of the graph of one device."""
