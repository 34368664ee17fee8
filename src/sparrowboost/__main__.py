"""``python -m sparrowboost`` is the command `sparrow`."""

import sys

from sparrowboost.cli import main

sys.exit(main())
