"""Results to text, JSON and CSV. Knows no argv and no terminal."""
