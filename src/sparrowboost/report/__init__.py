"""What a training tells, recorded and drawn: history, pictures, a page."""
