"""Runs programs of Python as a process each, forked from one that has imported PyTorch: its import takes seconds, most
programs of the tests milliseconds. A run of ctest has one such process for each environment, from which its tests are
forked too. What is about the import itself, or comes before it, runs a Python of its own.

usage: warm.py OWNER MODULE...   Serves on the socket that is its standard input until the process OWNER ends.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import gc
import hashlib
import importlib
import io
import json
import os
import runpy
import select
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

# Longer than any request or answer.
MOST_BYTES = 1 << 20
# Where programs find the one of the run that they belong to.
SERVER = "SPILLWAY_TEST_SERVER"
# Takes the place of Python where a path is asked for.
CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
request = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}}
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
code = int(server.recv(100))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def run_as_python(arguments: list[str]) -> None:
    if arguments[0] == "-u":
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(write_through=True)
        arguments = arguments[1:]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def begin(request: dict[str, Any], files: list[int]) -> None:
    """Makes this process what the request's would be before it reads its program."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = ["", *(path for path in given if path not in sys.path[1:])]
    if "SPILLWAY_RUN" in os.environ:  # what `spillway run` and `dryrun` have every Python read first
        sys.modules.pop("sitecustomize", None)
        site.execsitecustomize()


def keep(program: int, connection: socket.socket) -> NoReturn:
    """Tells who asked how the program ends. Who is ended first, as launchers end their workers, ends the program."""
    watched = select.poll()
    watched.register(connection, select.POLLIN)
    watched.register(os.pidfd_open(program), select.POLLIN)
    if connection.fileno() in dict(watched.poll()):
        os.kill(program, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(str(code).encode())
    os._exit(0)


def serve(listening: socket.socket, owner: int, modules: list[str]) -> None:
    """Answers each request with the program's exit code. Returns in programs' processes alone."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # what is there by now is not looked through again when programs end
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that keep programs
    life = os.pidfd_open(owner)
    watched = select.poll()
    watched.register(listening, select.POLLIN)
    watched.register(life, select.POLLIN)
    while True:
        if life in dict(watched.poll()):
            os._exit(0)
        connection, _ = listening.accept()
        if os.fork() == 0:
            break
        connection.close()
    listening.close()
    os.close(life)
    signal.signal(signal.SIGCHLD, handler)
    text, files, _, _ = socket.recv_fds(connection, MOST_BYTES, 3)
    program = os.fork()
    if program != 0:
        for file in files:
            os.close(file)
        keep(program, connection)
    connection.close()
    request = json.loads(text)
    begin(request, files)
    run_as_python(request["arguments"])


def start(
    listening: socket.socket, python: str, owner: int, modules: tuple[str, ...], environment: dict[str, str]
) -> None:
    """A server in a session of its own, without this process's output: who reads that sees its end."""
    nothing = [(os.POSIX_SPAWN_OPEN, file, os.devnull, os.O_WRONLY, 0) for file in (1, 2)]
    files = [(os.POSIX_SPAWN_DUP2, listening.fileno(), 0), *nothing]
    os.posix_spawn(python, [python, __file__, str(owner), *modules], environment, file_actions=files, setsid=True)


@functools.cache
def address(*modules: str) -> str:
    """Of a process that has imported these and serves until this one ends, or the run that this one belongs to."""
    shared = os.environ.get(SERVER)
    if shared and modules == ("torch",):
        return f"\0{shared}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("")  # the kernel's choice
    listening.listen()
    start(listening, python("torch") if shared else sys.executable, os.getpid(), modules, dict(os.environ))
    name: bytes = listening.getsockname()
    listening.close()
    return name.decode()


def address_of_run(owner: int, environment: dict[str, str]) -> str:
    """The server that children of this process share who have this environment. The first of them starts it."""
    key = hashlib.sha256(json.dumps([owner, sorted(environment.items())]).encode()).hexdigest()
    name = f"\0spillway-tests-{key}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        try:
            listening.bind(name)
        except OSError:  # another one has it
            return name
        listening.listen()
        start(listening, sys.executable, owner, ("torch",), environment)
    return name


def ask(name: str, arguments: list[str], environment: Mapping[str, str], files: list[int]) -> int:
    """Runs a program with these as its standard files, and returns its exit code."""
    request = {"arguments": arguments, "environment": dict(environment), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        deadline = time.monotonic() + 60
        while server.connect_ex(name) == errno.ECONNREFUSED:  # another test has named it, and is about to listen
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"nobody listens who would have PyTorch; does {sys.executable} -c 'import torch' run?"
                )
            time.sleep(0.01)
        socket.send_fds(server, [json.dumps(request).encode()], files)
        answer = server.recv(MOST_BYTES)
        assert answer, "the process that programs are forked from has ended"
        return int(answer)


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As subprocess.run([sys.executable, "-c", code, *arguments]) with output captured as text, and this added to the
    environment.
    """
    done = run_for_bytes(code, *arguments, **environment)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_for_bytes(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = ["-c", code, *arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        returned = ask(address("torch"), command, {**os.environ, **environment}, [0, out.fileno(), error.fileno()])
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(["python", *command], returned, out.read(), error.read())


@functools.cache
def python(*modules: str) -> str:
    """A file that runs as a Python does, which has imported these."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "python"
    path.write_text(CLIENT.format(python=sys.executable, address=address(*modules)))
    path.chmod(0o755)
    return str(path)


if __name__ == "__main__":
    asked = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    serve(asked, int(sys.argv[1]), sys.argv[2:])
