"""The gate's second chance, on small suites with pytest of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).parents[1] / ".ci" / "gate.py"

MAKEFILE = f"JOBS = 0\ntest:\n\t{sys.executable} -m pytest -n $(JOBS) $(ARGS)\n"
SETTINGS = "[pytest]\naddopts = -p xdist -p randomly -p pytest_reportlog\n"

PASSES = "def test_passes(): pass\n"
BREAKS_OFF = "import pytest\n\ndef test_breaks_off(): pytest.exit('out of memory')\n"
FAILS = "def test_fails(): assert 1 == 2\n"
FAILS_FIRST = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({number}))
def test_fails_first(number):
    seen = pathlib.Path(f"seen{{number}}")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the machine was busy")
"""
HANGS = """
import pathlib, signal

def test_hangs_for_ever():
    pathlib.Path("hangs").touch()
    signal.pause()
"""
DEPENDS_ON_ITS_SEED = """
import pathlib, random

def test_depends_on_its_seed():
    seen = pathlib.Path("seen")
    before = seen.read_text() if seen.exists() else None
    seen.write_text(str(random.random()))
    assert before is not None and before != seen.read_text()
"""


class Gate:
    """The gate in a folder that has a suite of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "Makefile").write_text(MAKEFILE)
        (folder / "pytest.ini").write_text(SETTINGS)

    def test(self, source: str, limit: float = 50, *arguments: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "test_it.py").write_text(source)
        return self._run("test", "Tests", str(limit), "make", "test", "--", *arguments)

    def summary(self) -> str:
        return self._run("summary").stdout

    def results(self) -> list[dict[str, object]]:
        return [json.loads(each.read_text()) for each in sorted((self.folder / ".ci" / ".results").glob("*.json"))]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST"))
        }
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what is not needed takes seconds
        command = [sys.executable, str(GATE), *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path)


def test_green(gate):
    assert gate.test(PASSES).returncode == 0
    assert "unstable  0 tests" in gate.summary()


def test_only_what_fails_again_counts_as_failed(gate):
    ended = gate.test(PASSES + FAILS + FAILS_FIRST.format(number=1))
    assert ended.returncode == 1
    assert "A second chance for 2" in ended.stdout
    (result,) = gate.results()
    assert result["failed"] == ["test_it.py::test_fails"]
    assert list(result["unstable"]) == ["test_it.py::test_fails_first[0]"]
    assert "FAILED    test_it.py::test_fails  (of: Tests)" in gate.summary()


def test_two_unstable_tests_are_listed_and_a_third_fails(gate):
    assert gate.test(FAILS_FIRST.format(number=2)).returncode == 0
    summary = gate.summary()
    assert "unstable  test_it.py::test_fails_first[0]  (of: Tests)" in summary
    assert "AssertionError: the machine was busy" in summary
    assert "unstable  2 tests, of 2 at most" in summary
    for seen in gate.folder.glob("seen*"):
        seen.unlink()
    ended = gate.test(FAILS_FIRST.format(number=1))
    assert ended.returncode == 1
    assert "second chance" not in ended.stdout


def test_a_run_that_breaks_off_is_red_whatever_passes_then(gate):
    assert gate.test(FAILS_FIRST.format(number=1) + BREAKS_OFF, 50, "-p", "no:randomly").returncode == 1
    (result,) = gate.results()
    assert "did not come to its end" in result["problem"]


def test_a_seed_that_finds_a_fault_finds_it_again(gate):
    assert gate.test(DEPENDS_ON_ITS_SEED).returncode == 1


@pytest.mark.thorough
def test_what_hangs_is_ended_and_says_where(gate):
    for limit in (5, 10, 20):  # on a busy machine it may not have begun
        ended = gate.test(HANGS, limit)
        if (gate.folder / "hangs").exists():
            break
    assert ended.returncode == 1
    assert "test_hangs_for_ever" in ended.stderr
    assert f"FAILED    Tests: not ended after {limit} s" in gate.summary()


def test_a_file_that_cannot_be_imported(gate):
    assert gate.test("import nothing_of_this_name").returncode == 1
    assert gate.results()[0]["failed"] == ["test_it.py"]


@pytest.mark.parametrize("arguments", [["-k", "nothing"], ["--no-such-option"], ["no_such_file.py"]])
def test_no_test_at_all(gate, arguments):
    assert gate.test(PASSES, 50, *arguments).returncode == 1
    assert gate.results()[0]["problem"]
