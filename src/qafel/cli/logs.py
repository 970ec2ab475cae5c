"""Log lines of a server or client on stderr, as text with the time or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime


class _Text(logging.Formatter):
    """2026-11-18 09:30:01 and the message, in local time; warnings and errors start with their level."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's own name)
        if record.levelno >= logging.WARNING:
            record.message = f"{record.levelname.lower()}: {record.message}"
        return super().formatMessage(record)


class _Json(logging.Formatter):
    """One object per line: time, level, logger, message, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def start(as_json: bool = False, quiet: bool = False, level: int = logging.WARNING) -> None:
    """Start to log: messages of commands, unless `quiet`, and messages of libraries from `level` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("qafel.cli").setLevel(logging.ERROR if quiet else logging.INFO)
    if as_json:
        sys.excepthook = lambda *error: logging.getLogger(__name__).critical("an unexpected error", exc_info=error)


def log_error(sentence: str) -> None:
    """Print why a command ends, as JSON if the log is JSON."""
    if any(isinstance(handler.formatter, _Json) for handler in logging.getLogger().handlers):
        logging.getLogger(__name__).error(sentence)
    else:
        print(f"qafel: {sentence}", file=sys.stderr)
