"""What the command ``parsimax`` runs. It stands beside the package: importing anything inside it imports torch first.

``parsimax/__init__.py`` sees that this module is there, and lets its names come with their first use, so that the help
and a mistyped command are answered before torch, which takes seconds, is loaded.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    from parsimax.cli import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.modules.setdefault("parsimax_command", sys.modules[__name__])
    sys.exit(main())
