"""One self-contained HTML page of a recording."""

from .write import write_report

__all__ = ["write_report"]
