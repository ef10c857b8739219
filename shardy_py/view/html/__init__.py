"""A plan as a web page, and as a card in a notebook."""
