"""The names on which the processes of a campaign agree."""

from __future__ import annotations

import json
import os
from typing import Any

VARIABLE = "RLOCK_CAMPAIGN"
PLAN: dict[str, Any] = json.loads(os.environ.get(VARIABLE, "{}"))
"""In workers: the addresses of the servers, the folder for records, and whose tasks they are."""
WATCHDOG_TIMEOUT = 3.0
VISIBILITY = 3.0
"""The broker's visibility timeout, in seconds."""
MARKER = 3 * VISIBILITY
"""How long a success is remembered, in seconds: LockedTask's default."""
PLACE, QUEUE, TASKS = "locks", "campaign", "tasks"
"""Where all holds are; the name of the queue; the folder with what became of tasks."""
