"""How a worker handles a message. Only workers import this, by its name."""

from __future__ import annotations

from celery.worker.request import Request
from celery.worker.state import successful_requests

from django_rlock._tasks.reservations import PLACE, leave_later


class PlacedRequest(Request):
    """Leaves the message's place in the queue at the two endings of which no signal tells."""

    def acknowledge(self) -> None:
        """Handle a copy of a success that ``worker_deduplicate_successful_tasks`` does not run."""
        super().acknowledge()
        if self.delivery_info["redelivered"] and self.id in successful_requests:
            self._leave_place()

    def reject(self, requeue: bool = False) -> None:
        """Handle an ``eta`` that is not a time."""
        super().reject(requeue)
        if not requeue:
            self._leave_place()

    def _leave_place(self) -> None:
        if PLACE in self.request_dict:
            leave_later(self.request_dict[PLACE], str(self.id))
