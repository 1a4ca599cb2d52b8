"""The parameters of a reader: each declared once, and checked once."""
