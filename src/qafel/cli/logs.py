"""What a server or a client says while it runs: lines on stderr, each with its time; for machines as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from typing import Annotated

import typer

LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log to stderr as JSON, one object a line.")]


class _Text(logging.Formatter):
    """2026-11-18 09:30:01 and the message, in local time; what is more than news says so first."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's own name)
        if record.levelno >= logging.WARNING:
            record.message = f"{record.levelname.lower()}: {record.message}"
        return super().formatMessage(record)


class _Json(logging.Formatter):
    """One object a line: time, level, logger, message, and the traceback of an exception."""

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
    """Log from now on: what commands say, unless they are `quiet`, and what libraries say from `level` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if as_json else _Text())
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("qafel.cli").setLevel(logging.ERROR if quiet else logging.INFO)
    if as_json:
        sys.excepthook = lambda *error: logging.getLogger(__name__).critical("an unexpected error", exc_info=error)


def tell_error(sentence: str) -> None:
    """Say why a command ends; to machines in their own language."""
    if any(isinstance(handler.formatter, _Json) for handler in logging.getLogger().handlers):
        logging.getLogger(__name__).error(sentence)
    else:
        print(f"qafel: {sentence}", file=sys.stderr)
