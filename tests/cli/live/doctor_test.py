"""`spillway doctor` says what is there, and what is not with a reason; its exit code says whether Spillway serves.

usage: doctor_test.py SPILLWAY LIBSPILLWAY LIBCUDA SCHEMA
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from watching import Watched, watched


def examine(here: Watched, code: int, **environment: str) -> tuple[Any, dict[str, Any]]:
    done = here.run("doctor", "--json", **environment)
    assert done.returncode == code and done.stderr == "", done
    found = json.loads(done.stdout)
    Draft202012Validator(json.loads(Path(sys.argv[4]).read_text())).validate(found)
    return found, {row["name"]: row for row in found["checks"]}


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
