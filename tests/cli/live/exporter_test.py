"""A real Prometheus scrapes `spillway exporter`, and every query of the dashboard answers.

usage: exporter_test.py SPILLWAY LIBSPILLWAY LIBCUDA DASHBOARD
Exits with 77 (skipped) where there is no Prometheus.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from watching import MIB, Watched, eventually, watched


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


@contextmanager
def exporter(here: Watched) -> Iterator[int]:
    """Its port."""
    words = [here.command, "exporter", "--listen", "127.0.0.1:0", "--dir", here.folder]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().split()[-1])
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prometheus(here: Watched, target: int) -> Iterator[str]:
    """The address of its interface."""
    folder = Path(here.folder) / "prometheus"
    folder.mkdir()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: spillway, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    port = free_port()
    words = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.terminate()


def ask(address: str, query: str) -> Any:
    """The series that a query answers; none while Prometheus is not up."""
    try:
        answer = json.loads(get(f"{address}/query?{urllib.parse.urlencode({'query': query})}"))
    except (urllib.error.URLError, ConnectionError):
        return []
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


def test_page(port: int) -> None:
    page = get(f"http://127.0.0.1:{port}/metrics")
    if shutil.which("promtool"):
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0 and checked.stderr == "", checked
    assert "/metrics" in get(f"http://127.0.0.1:{port}/")
    try:
        get(f"http://127.0.0.1:{port}/other")
        raise AssertionError("a page that is none")
    except urllib.error.HTTPError as error:
        assert error.code == 404


def test_scraped(address: str, pids: list[int]) -> None:
    wanted = {str(pid) for pid in pids}
    eventually(
        lambda: {row["metric"]["pid"] for row in ask(address, "spillway_allocated_bytes")} == wanted, "both processes"
    )
    for row in ask(address, "sum by (pid) (spillway_allocated_bytes)"):
        assert float(row["value"][1]) >= 50 * MIB
    identity = "spillway_reserved_bytes - on (pid, device, pool) spillway_reserved_bytes"
    assert all(float(row["value"][1]) == 0 for row in ask(address, identity))
    rate = "rate(spillway_allocated_added_bytes_total[10s])"
    eventually(lambda: any(float(row["value"][1]) > 0 for row in ask(address, rate)), "a rate")


def test_dashboard(address: str, dashboard: Path, page: str) -> None:
    """Each name is one the exporter serves, and each query is one Prometheus understands."""
    served = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    queries = [target["expr"] for panel in json.loads(dashboard.read_text())["panels"] for target in panel["targets"]]
    assert len(queries) > 5
    for query in queries:
        names = set(re.findall(r"spillway_\w+", query))
        assert names and names <= served, (query, names - served)
        ask(address, query.replace("$__rate_interval", "10s").replace("$pid", ".*"))


def test_bad_input(here: Watched, port: int) -> None:
    for listen in "nowhere", ":9", "127.0.0.1:99999", "127.0.0.1:", "::1:80", "256.1.1.1:0", f"127.0.0.1:{port}":
        done = here.run("exporter", "--listen", listen)
        assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1, (listen, done)
        assert "--listen" in done.stderr and listen in done.stderr, done


def main() -> int:
    with watched(sys.argv) as here, here.program(60) as first, here.program(50) as second, exporter(here) as port:
        eventually(
            lambda: get(f"http://127.0.0.1:{port}/metrics").count("spillway_device_info{") == 2, "two devices' rows"
        )
        test_bad_input(here, port)
        test_page(port)
        if not shutil.which("prometheus"):
            print("no prometheus: only the page was looked at")
            return 77
        with prometheus(here, port) as address:
            test_scraped(address, [first.pid, second.pid])
            test_dashboard(address, Path(sys.argv[4]), get(f"http://127.0.0.1:{port}/metrics"))
            # A process that has ended is no longer told of.
            second.kill()
            second.wait()
            eventually(lambda: len(ask(address, "spillway_device_info")) == 1, "one process less")
    return 0


if __name__ == "__main__":
    sys.exit(main())
