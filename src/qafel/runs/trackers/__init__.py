"""Trackers: where people look at runs beside the run directory. They hear of settings, rows, the end and its files.

choice        which trackers hear of a run, and what each is told of it
sending       the listener that tells a tracker in a thread, so that a slow or broken one never holds up a run
tensorboard   events in the run directory
mlflow        a run in an MLflow store
wandb         a run in Weights & Biases, offline too
"""

from qafel.runs.trackers.choice import NOT_TRACKED, Track, TrackedRun, TrackerName, track_of
from qafel.runs.trackers.sending import Say, follow, grouped

__all__ = ["NOT_TRACKED", "Say", "Track", "TrackedRun", "TrackerName", "follow", "grouped", "track_of"]
