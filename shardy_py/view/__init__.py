"""Plans for people: text and other forms."""
