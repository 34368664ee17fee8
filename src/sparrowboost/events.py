"""What training tells while it runs: each callback gets every one of these events."""

from sparrowboost.learner.events import Callback, Converged, Event, Finished, SampleDrawn, TreeAdded

__all__ = ["Callback", "Converged", "Event", "Finished", "SampleDrawn", "TreeAdded"]
