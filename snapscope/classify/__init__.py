"""Which of the five categories each allocation is in, and how that is known."""
