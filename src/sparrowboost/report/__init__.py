"""A training, recorded and drawn: its history, pictures of it, and the report."""
