"""`spillway doctor` says what is there, and what is not with a reason; its exit code says whether Spillway serves.

usage: doctor_test.py SPILLWAY LIBSPILLWAY LIBCUDA SCHEMA
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from watching import Watched, watched


def examine(here: Watched, code: int, *words: str, **environment: str) -> tuple[Any, dict[str, Any]]:
    done = here.run("doctor", "--json", *words, **environment)
    assert done.returncode == code and done.stderr == "", done
    found = json.loads(done.stdout)
    Draft202012Validator(json.loads(Path(sys.argv[4]).read_text())).validate(found)
    return found, {row["name"]: row for row in found["checks"]}


GOOD: dict[str, Any] = {
    "simulated": False,
    "aliasing": {
        "wrong_words_next_launch_same_stream": 0,
        "wrong_words_across_streams_by_event": 0,
        "wrong_words_shared_edge": 0,
    },
    "aliasing_resident": {
        "checks_can_fail": True,
        "wrong_words_controls": 0,
        "wrong_words_beside": 0,
        "cases": {"edge_512": {"wrong_words": 0}},
    },
}


def probe_the_simulated(here: Watched, cache: Path) -> None:
    """It shows every wrong word that it has, and runs no kernels: of a driver nothing follows."""
    began = time.monotonic()
    found, checks = examine(here, 0, "--probe", SPILLWAY_CACHE=str(cache))
    assert time.monotonic() - began < 30
    assert checks["probe_next_launch"]["answer"] == "yes" and checks["probe_shared_edge"]["answer"] == "yes", checks
    assert checks["probe_running_edge"]["detail"] == "no kernels run here", checks
    (profile,) = found["profiles"]
    assert profile["profile"] is None and profile["kept_in"] is None, profile
    assert not cache.exists()
    text = here.run("doctor", "--probe", SPILLWAY_CACHE=str(cache)).stdout
    assert "which profile it deserves is not known.\n" in text, text


def probe_as(here: Watched, report: Any, cache: Path, **environment: str) -> Any:
    """Beside a probe that reports this."""
    folder = Path(here.command).parent
    (folder / "report.json").write_text(json.dumps(report))
    probe = folder / "driver_probe"
    probe.write_text(f"#!/bin/sh\nexec cat '{folder}/report.json'\n")
    probe.chmod(0o755)
    found, _ = examine(here, 0, "--probe", SPILLWAY_CACHE=str(cache), **environment)
    (profile,) = found["profiles"]
    return profile


def keep_verdicts(own: Watched, folder: Path) -> None:
    cache = folder / "cache" / "not yet there"
    kept = cache / "driver-profiles.json"
    profile = probe_as(own, GOOD, cache)
    assert profile["profile"] == "ordinary" and profile["kept_in"] == str(kept), profile
    device, driver = profile["device_name"], profile["driver"]
    assert json.loads(kept.read_text()) == {"schema_version": 1, "drivers": {driver: {device: "ordinary"}}}
    # Beside what is kept of others, in place of what was.
    kept.write_text(json.dumps({"schema_version": 1, "drivers": {"A": {"B": "plain"}, driver: {device: "plain"}}}))
    probe_as(own, GOOD | {"aliasing": GOOD["aliasing"] | {"wrong_words_shared_edge": 3}}, cache)
    assert json.loads(kept.read_text())["drivers"] == {"A": {"B": "plain"}, driver: {device: "careful"}}
    # What says nothing changes nothing.
    for report in ({}, GOOD | {"simulated": True}, GOOD | {"aliasing": {"error": "busy"}}):
        assert probe_as(own, report, cache)["profile"] is None
        assert json.loads(kept.read_text())["drivers"][driver] == {device: "careful"}
    for garbage in ("", "{", "[]", '{"schema_version": 1, "drivers": 7}', f'{{"drivers": {{"{driver}": []}}}}'):
        kept.write_text(garbage)
        probe_as(own, GOOD, cache)
        assert json.loads(kept.read_text())["drivers"][driver] == {device: "ordinary"}, garbage


def complain(own: Watched, folder: Path) -> None:
    probe = Path(own.command).with_name("driver_probe")
    for text in ("#!/bin/sh\nexit 3\n", None):
        probe.unlink()
        if text is not None:
            probe.write_text(text)
            probe.chmod(0o755)
        done = own.run("doctor", "--probe")
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
        assert "driver_probe" in done.stderr, done
    done = own.run("doctor", "--probes")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done


def probe(here: Watched, folder: Path) -> None:
    probe_the_simulated(here, folder / "none")
    # The command finds the probe beside itself: a command elsewhere, and a probe that reports what it is told to.
    (folder / "bin").mkdir()
    command = shutil.copy2(here.command, folder / "bin" / "spillway")
    libraries = str(Path(here.spillway).parent)
    own = replace(here, command=str(command), libraries=libraries)
    keep_verdicts(own, folder)
    complain(own, folder)


def main() -> int:
    with watched(sys.argv) as here:
        found, checks = examine(here, 0)
        assert found["can_serve"]
        for name in "driver", "device", "virtual_memory_management", "host_memory_mapped", "spill_directory":
            assert checks[name]["answer"] == "yes", checks[name]
        # Whatever is absent has its reason.
        assert all(row["detail"] for row in found["checks"] if row["answer"] == "no"), found

        _, checks = examine(here, 0, SPILLWAY_CONF="spill_dir:/proc/none")
        assert checks["spill_directory"]["answer"] == "no" and "/proc/none" in checks["spill_directory"]["detail"]

        found, checks = examine(here, 2, SPILLWAY_LIBCUDA="/none/libcuda.so.1")
        assert not found["can_serve"]
        assert checks["driver"]["answer"] == "no" and "/none/libcuda.so.1" in checks["driver"]["detail"]

        text = here.run("doctor").stdout
        assert text.endswith("Spillway can serve here.\n") and "virtual_memory_management 0" in text, text
        into = Path(here.folder) / "answer.txt"
        done = here.run("doctor", "--output", str(into))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
        # Other programs take some of /dev/shm and give it back in the meantime.
        free = re.compile(r"[\d.]+ [KMGT]iB free")
        assert free.sub("", into.read_text()) == free.sub("", text)
        probe(here, Path(here.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
