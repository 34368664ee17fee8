"""``python -m sparrowboost`` is the command `sparrow`."""

from sparrowboost.cli import run

run()
