"""Runs programs of Python as a process each, forked from one that has imported PyTorch: its import takes seconds, most
programs of the tests milliseconds. What is about the import itself, or comes before it, runs a Python of its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import types

# Longer than any request or answer.
MOST_BYTES = 1 << 20


def serve(requests: socket.socket) -> None:
    """Answers with the exit code of each program. Returns only in a program's process, when it has run."""
    importlib.import_module("torch")
    gc.freeze()  # what is there by now is not looked through again when programs end
    while True:
        text, files, _, _ = socket.recv_fds(requests, MOST_BYTES, 2)
        if not text:
            return
        child = os.fork()
        if child == 0:
            break
        for file in files:
            os.close(file)
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    requests.close()
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    request = json.loads(text)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    sys.path[0] = ""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(request["code"], "<string>", "exec"), main.__dict__)


class Server:
    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(self.stop)

    def stop(self) -> None:
        self.socket.close()
        self.process.wait()


server: Server | None = None


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As subprocess.run([sys.executable, "-c", code, *arguments]) with output captured as text, and this added to the
    environment.
    """
    global server
    if server is None:
        server = Server()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        given = {"code": code, "arguments": arguments, "environment": {**os.environ, **environment}}
        request = json.dumps(given).encode()
        socket.send_fds(server.socket, [request], [out.fileno(), error.fileno()])
        answer = server.socket.recv(MOST_BYTES)
        if not answer:
            raise RuntimeError("the process that programs are forked from has ended")
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(["python", "-c", code, *arguments], int(answer), out.read(), error.read())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
