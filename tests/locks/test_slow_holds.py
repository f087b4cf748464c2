"""A hold that took longer than SLOW_HOLD is named in the log when it ends."""

import logging

import pytest

from django_rlock import rlock


@pytest.mark.parametrize(("slow_hold", "level"), [(0.000001, logging.WARNING), (10, logging.DEBUG)])
def test_the_log_names_a_slow_hold(settings, caplog, slow_hold: float, level: int) -> None:
    settings.RLOCK = {"default": {"SLOW_HOLD": slow_hold}}
    with caplog.at_level(logging.DEBUG, "django_rlock.locks"), rlock("a"):
        pass
    (released,) = (record for record in caplog.records if record.message.startswith("Released 'a'"))
    assert released.levelno == level
