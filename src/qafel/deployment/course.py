"""Whether a run goes on: its last step, its target, divergence or a signal ends it."""

from __future__ import annotations

import logging
import math
from typing import final

from qafel.config import Config
from qafel.deployment.observe import Evaluator
from qafel.deployment.truth import Truth

log = logging.getLogger(__name__)


@final
class Course:
    """Running, until it is finished, stopped or diverged; and when the model is measured on the way."""

    def __init__(self, config: Config, truth: Truth, evaluator: Evaluator) -> None:
        self.state = "running"
        self._stop = config.stop
        self._evaluation = config.evaluation
        self._truth = truth
        self._evaluator = evaluator
        self._uploads_before = truth.totals.uploads

    @property
    def goes_on(self) -> bool:
        return self.state == "running"

    def end(self, state: str) -> None:
        """The first end counts."""
        if self.goes_on:
            self.state = state

    def look(self) -> None:
        """End a run that has reached one of its limits."""
        stop, totals = self._stop, self._truth.totals
        if (
            self._truth.server.version >= (stop.server_steps or math.inf)
            or totals.uploads >= (stop.uploads or math.inf)
            or totals.upload_bytes + totals.broadcast_bytes >= (stop.traffic_bytes or math.inf)
        ):
            self.end("finished")

    def after_upload(self, version_before: int, diverged: str | None) -> None:
        """Have the model measured, where an evaluation is due; then look."""
        server, totals, evaluation = self._truth.server, self._truth.totals, self._evaluation
        by_uploads = evaluation.unit == "uploads"
        # A rejected message counts nothing, and gives no reason to measure again.
        changed = totals.uploads > self._uploads_before if by_uploads else server.version > version_before
        self._uploads_before = totals.uploads
        if changed and (totals.uploads if by_uploads else server.version) % evaluation.every == 0:
            self._evaluator.offer(server.version, server.model, totals, server.hidden_state.vector)
        if diverged is not None:
            log.error("%s", diverged)
            self.end("diverged")
        if self._stop.at_target and self._evaluator.reached is not None:
            self.end("finished")
        self.look()
