import pytest

from tests.inspection.reporting import Clock, forget_reports


@pytest.fixture
def clock(_empty_server: None) -> Clock:
    """The report's job, driven by the test, in a process that has reported nothing yet."""
    forget_reports()
    return Clock()
