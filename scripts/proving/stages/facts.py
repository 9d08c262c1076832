"""The machine: its GPU and driver, what it runs, and whether the parcel's programs start on it."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from ..layout import ABOUT, SPARE, Machine, spare_folders
from ..running import Stage

QUERY = (
    "name,driver_version,memory.total,memory.used,persistence_mode,mig.mode.current,"
    "pcie.link.gen.current,pcie.link.width.current"
)
TORCH = "import torch; print(torch.__version__, torch._C._GLIBCXX_USE_CXX11_ABI, torch.version.cuda)"
FILES = ("/proc/meminfo", "/proc/cpuinfo", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/vm/max_map_count")


def output(*command: str) -> str:
    """The first lines of what it printed; "" where there is no such program."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()[:2000]


def head(file: str) -> str:
    path = Path(file)
    return "\n".join(path.read_text().splitlines()[:12]) if path.exists() else ""


def missing_libraries(machine: Machine) -> dict[str, list[str]]:
    """By program, what ldd does not find. Empty where there is no ldd."""
    missing = {}
    for file in [*sorted(machine.programs.iterdir()), machine.libspillway, machine.preload]:
        try:
            said = subprocess.run(["ldd", file], env=machine.for_program(), capture_output=True, text=True, check=False)
        except OSError:
            return {}
        if lost := [line.strip() for line in (said.stdout + said.stderr).splitlines() if "not found" in line]:
            missing[file.name] = lost[:5]
    return missing


def run(stage: Stage) -> None:
    machine = stage.machine
    stage.found(
        nvidia_smi=output("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"),
        driver_release=output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
        nvcc=output("nvcc", "--version").rpartition("\n")[2],
        system=" ".join(platform.uname()),
        libc=" ".join(platform.libc_ver()),
        python=platform.python_version(),
        spare_library=bool(spare_folders(machine.programs / "driver_probe", machine.libraries)),
        has_spare=(machine.libraries / SPARE).is_dir(),
        files={file: head(file) for file in FILES},
        parcel=head(str(machine.root / ABOUT)),
        missing_libraries=missing_libraries(machine),
    )
    programs = machine.for_program()
    stage.run("torch", [machine.python, "-c", TORCH], machine.for_python(), 60)
    stage.run("version", [machine.programs / "spillway", "--version"], programs, 20)
    stage.run("doctor", [machine.programs / "spillway", "doctor", "--json"], programs, 60)
    code = "import spillway; print(spillway.install().mode); import torch; torch.ones(8, device='cuda').sum().item()"
    stage.run("install", [machine.python, "-c", code], machine.for_python(), 200)
