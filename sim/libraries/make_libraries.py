"""Makes stand-ins for the NVIDIA libraries that a PyTorch wheel is linked with: it runs on the simulated device then.

What to make is read from the wheel: the functions its libraries import, and the versions of their names. A function has
the body written for it in answers/LIBRARY.c, or else returns one status: success where the library computes, since
kernels here compute nothing, and "not supported" where the caller would read results that nobody wrote.

An import that belongs to no library known here is an error that names it. With --refuse-unknown, functions of the
runtime that it lacks are there and answer that they are not supported, for a PyTorch that nobody has tried. Beside the
libraries lies a copy of the wheel's version.py, made_for, which tells for whom they are.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Library:
    soname: str
    names: str  # regular expression of the functions it exports
    status: int  # what a function returns that has no body of its own
    node: str | None  # version of its names, where they have one
    built: str | None = None  # the library made by the build that has the bodies

    @property
    def short(self) -> str:
        return self.soname.split(".so")[0].removeprefix("lib")


CUDA_NOT_SUPPORTED = 801
CUSOLVER_NOT_SUPPORTED = 9
CUSPARSE_NOT_SUPPORTED = 10
CUDNN_NOT_SUPPORTED = 3000


def versioned(name: str, number: int, names: str, status: int) -> Library:
    """One whose names have its own as their version."""
    soname = f"lib{name}.so.{number}"
    return Library(soname, names, status, soname)


def libraries_of(cuda: int) -> tuple[Library, ...]:
    """Those of a major version. The first pattern that matches a name tells its library."""
    solver = cuda - 1  # cuSOLVER and cuFFT were numbered anew with CUDA 13 as well
    return (
        Library("libcusparseLt.so.0", r"cusparseLt", CUSPARSE_NOT_SUPPORTED, None),
        versioned("cublasLt", cuda, r"cublasLt", 0),
        versioned("cublas", cuda, r"cublas", 0),
        versioned("cudnn", 9, r"cudnn", CUDNN_NOT_SUPPORTED),
        versioned("cusolver", solver, r"cusolver", CUSOLVER_NOT_SUPPORTED),
        versioned("cusparse", 12, r"cusparse", CUSPARSE_NOT_SUPPORTED),
        versioned("cufft", solver, r"cufft", 0),
        Library("libcurand.so.10", r"curand", 0, None),
        Library("libcufile.so.0", r"cuFile", 5003, None),
        versioned("cupti", cuda, r"cupti", 0),
        versioned("nvrtc", cuda, r"nvrtc", 0),
        versioned("nvJitLink", cuda, r"nvJitLink", 1),
        Library("libnvshmem_host.so.3", r"nvshmem", 1, "NVSHMEM"),
        Library("libnccl.so.2", r"nccl", 0, None, "libspillway_nccl.so.0"),
    )


def built_of(cuda: int) -> dict[str, str]:
    """Made by the build from their own sources."""
    return {f"libcudart.so.{cuda}": r"_*cuda[A-Z]", "libcuda.so.1": r"cu[A-Z]"}


def unknown_of(cuda: int) -> Library:
    """Functions of the runtime that the built one lacks: names that have its version are found here as well."""
    return Library("libspillway_unknown.so.0", "", CUDA_NOT_SUPPORTED, f"libcudart.so.{cuda}")


class MakeError(Exception):
    """One line for the user."""


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        problem = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise MakeError(f"{Path(str(command[0])).name} failed: {problem}")
    return done.stdout


def imports(nm: str, torch: Path, cuda: int) -> set[str]:
    """The functions that PyTorch's libraries take from NVIDIA's."""
    patterns = [*(library.names for library in libraries_of(cuda)), *built_of(cuda).values()]
    every = "|".join(f"(?:{names})" for names in patterns)
    wanted = re.compile(rf"^\s+[UwW] ((?:{every})\w*)(?:@.*)?$")
    found: set[str] = set()
    importers = sorted((torch / "lib").glob("lib*.so"))
    if not importers:
        raise MakeError(f"no libraries of PyTorch in {torch / 'lib'}")
    for importer in importers:
        for line in run(nm, "-D", "--undefined-only", importer).splitlines():
            if match := wanted.match(line):
                found.add(match[1])
    if not found:
        raise MakeError(f"the libraries in {torch / 'lib'} import nothing of CUDA: not a CUDA build")
    return found


def exports(nm: str, library: Path) -> set[str]:
    lines = run(nm, "-D", "--defined-only", library).splitlines()
    return {line.split()[2].split("@")[0] for line in lines if len(line.split()) == 3}


def sort_by_library(
    names: Iterable[str], libraries: tuple[Library, ...], built: dict[str, set[str]], unknown_is: Library | None
) -> dict[str, list[str]]:
    """`unknown_is`: the library of what the built runtime lacks; without one that is an error."""
    sorted_names: dict[str, list[str]] = {library.soname: [] for library in libraries}
    unknown: list[str] = []
    for name in sorted(names):
        library = next((one for one in libraries if re.match(one.names, name)), None)
        if library is not None:
            sorted_names[library.soname].append(name)
        elif not any(name in provided for provided in built.values()):
            unknown.append(name)
    if unknown_is is not None:
        sorted_names[unknown_is.soname] = [name for name in unknown if re.match(r"_*cuda[A-Z]", name)]
        unknown = [name for name in unknown if name not in sorted_names[unknown_is.soname]]
    if unknown:
        raise MakeError("PyTorch imports what no stand-in has: " + ", ".join(unknown))
    return sorted_names


def make(
    compiler: list[str], nm: str, library: Library, names: list[str], built: Path, work: Path, output: Path, cuda: int
) -> None:
    answers = HERE / "answers" / f"{library.short}.c"
    sources = [work / f"{library.short}.c"]
    answered: set[str] = set()
    if answers.exists():
        compiled = work / f"{library.short}_answers.o"
        run(*compiler, "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-DCUDA={cuda}", "-c", answers, "-o", compiled)
        answered = {line.split()[2] for line in run(nm, "-g", "--defined-only", compiled).splitlines()}
        sources.append(compiled)
    options = ["-shared", "-fPIC", "-O2", f"-Wl,-soname,{library.soname}"]
    if library.built is not None:
        answered |= exports(nm, built / library.built)
        beside = ["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-Wl,-rpath,$ORIGIN"]
        options += [*beside, f"-L{built}", f"-l:{library.built}"]
    bodies = [f"long {name}(void) {{ return {library.status}; }}" for name in names if name not in answered]
    sources[0].write_text("\n".join(bodies) + "\nint spillway_stand_in = 1;\n")
    if library.node is not None:
        version_script = work / f"{library.short}.map"
        version_script.write_text(f"{library.node} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={version_script}")
    run(*compiler, *options, *sources, "-o", output / library.soname)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=Path, required=True, help="folder of the installed torch package")
    parser.add_argument("--built", type=Path, required=True, help="folder of the simulated libcuda.so.1 and libcudart")
    parser.add_argument("--cuda", type=int, choices=(12, 13), default=13, help="whose PyTorch it is (default: 13)")
    parser.add_argument(
        "--refuse-unknown",
        action="store_true",
        help="functions of the runtime that it lacks answer so, instead of an error",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the libraries")
    parser.add_argument("--work", type=Path, required=True, help="folder for what they are made from")
    parser.add_argument("--cc", nargs="+", default=["cc"], help="C compiler, and words for it (default: cc)")
    parser.add_argument("--nm", default="nm", help="default: nm")
    options = parser.parse_args()
    try:
        libraries = libraries_of(options.cuda)
        built = {soname: exports(options.nm, options.built / soname) for soname in built_of(options.cuda)}
        unknown = unknown_of(options.cuda) if options.refuse_unknown else None
        names = sort_by_library(imports(options.nm, options.torch, options.cuda), libraries, built, unknown)
        if unknown is not None and names[unknown.soname]:
            libraries = (*libraries, unknown)
        options.work.mkdir(parents=True, exist_ok=True)
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "made_for").unlink(missing_ok=True)
        with ThreadPoolExecutor() as pool:
            jobs = [
                pool.submit(
                    make,
                    options.cc,
                    options.nm,
                    library,
                    names[library.soname],
                    options.built,
                    options.work,
                    options.output,
                    options.cuda,
                )
                for library in libraries
            ]
            for job in jobs:
                job.result()
        shutil.copyfile(options.torch / "version.py", options.output / "made_for")
    except (MakeError, OSError) as problem:
        print(f"make_libraries: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
