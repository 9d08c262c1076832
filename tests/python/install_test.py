"""install(): what it does, when it is too late, and what is wrong in the environment. A process for each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path

import warm
from spillway._pytorch import settings


def torch_folder() -> Path:
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


EXTENSION = "import torch, spillway; from spillway._pytorch import build; print(build.extension(torch))"


def quick_compiler(folder: Path) -> str:
    """A compiler that makes files, in long enough for processes that begin together to meet; `count` has its links."""
    compiler = folder / "compiler"
    compiler.write_text(f"""#!/bin/sh
case " $* " in *" -c "*) sleep 0.5 ;; *) echo >>{folder}/count ;; esac
while [ "$1" != -o ]; do shift; done
echo >"$2"
""")
    compiler.chmod(0o755)
    return str(compiler)


def run_anew(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Where PyTorch must be another, or is not to be there."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


INSTALL = "import spillway; print(spillway.install().mode)"


class Case(unittest.TestCase):
    def refuses(self, code: str, *words: str, **environment: str) -> None:
        self.is_refused(warm.run(code, **environment), *words)

    def is_refused(self, done: subprocess.CompletedProcess[str], *words: str) -> None:
        self.assertNotEqual(done.returncode, 0, done.stdout)
        line = last_line(done.stderr)
        self.assertTrue(line.startswith("spillway._errors.SpillwayError: "), done.stderr)
        for word in words:
            self.assertIn(word, line)


class Install(Case):
    def test_serves_tensors(self) -> None:
        code = """
import torch, spillway
spillway.install()
tensor = torch.zeros(1000, device="cuda")
print(spillway.installed().mode, torch.cuda.memory_allocated(), torch.cuda.get_allocator_backend())
"""
        done = warm.run(code)
        self.assertEqual(done.stdout.strip(), "full 4096 spillway", done.stderr)

    def test_pools_and_limits_before_the_first_block(self) -> None:
        code = """
import torch, spillway
spillway.install()
torch.cuda.set_per_process_memory_fraction(0.5)
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    tensor = torch.zeros(1000, device="cuda")
print(pool.use_count(), torch.cuda.get_per_process_memory_fraction())
"""
        done = warm.run(code)
        self.assertEqual(done.stdout.split(), ["1", "0.5"], done.stderr)

    def test_a_pool_may_come_first(self) -> None:
        done = warm.run(f"{INSTALL}; import torch; print(torch.cuda.MemPool().use_count())")
        self.assertEqual(done.stdout.split(), ["full", "1"], done.stderr)

    def test_again_is_ok(self) -> None:
        self.assertEqual(warm.run(f"{INSTALL}; spillway.install()").stdout.strip(), "full")

    def test_again_for_pinned_memory(self) -> None:
        code = """
import spillway, torch
spillway.install({first})
{between}
print(spillway.install({second}).pinned_memory)
torch.cuda.init()
block = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
print(torch.cuda.host_memory_stats()["allocated_bytes.current"] >> 20)  # PyTorch's own takes 4 MiB
"""
        pin = "mine = torch.empty(1, pin_memory=True)"
        use = "torch.zeros(1, device='cuda')"
        for first, between, second, said in (
            ("", "", "pinned_memory=True", ["True", "3"]),
            ("pinned_memory=True", use, "pinned_memory=True", ["True", "3"]),
            ("pinned_memory=True", use, "", ["True", "3"]),
            ("", use, "pinned_memory=False", ["False", "4"]),
            ("", use, "pinned_memory=True, fallback=True", ["False", "4"]),
        ):
            done = warm.run(code.format(first=first, between=between, second=second))
            self.assertEqual(done.stdout.split(), said, done.stderr)
            self.assertEqual("what was installed serves: CUDA is initialised" in done.stderr, "fallback" in second)
        for first, between, second, words in (
            ("", use, "pinned_memory=True", ["CUDA is initialised already", "pinned_memory:on", "<string>:4"]),
            ("", pin, "pinned_memory=True", ["pinned memory already", "right after the imports"]),
            ("pinned_memory=True", "", "pinned_memory=False", ["already", "first install()"]),
            ("'plain'", "", "pinned_memory=True", ["install(mode='full')"]),
        ):
            self.refuses(code.format(first=first, between=between, second=second), *words)

    def test_again_for_pinned_memory_answers_settings_for_it(self) -> None:
        code = "import spillway; spillway.install(); spillway.install(pinned_memory=True)"
        done = warm.run(code, PYTORCH_ALLOC_CONF="pinned_use_background_threads:True")
        self.assertEqual(done.stderr.count("pinned_use_background_threads changes nothing"), 1, done.stderr)

    def test_disabled(self) -> None:
        done = warm.run(f"{INSTALL}; import torch; print(torch.cuda.get_allocator_backend())", SPILLWAY_DISABLE="1")
        self.assertEqual(done.stdout.split(), ["none", "native"])
        late = warm.run(f"{INSTALL}; import os; os.environ['SPILLWAY_DISABLE'] = '1'; print(spillway.install().mode)")
        self.assertEqual(late.stdout.split(), ["full", "full"])

    def test_too_late_names_what_came_first(self) -> None:
        code = "import spillway, torch\nx = torch.zeros(1, device='cuda')\nspillway.install()"
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "late.py"
            script.write_text(code)
            done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        self.assertIn("late.py:2", last_line(done.stderr))
        self.assertIn("spillway.install() first", last_line(done.stderr))

    def test_too_late_by_a_function_that_pytorch_keeps_a_copy_of(self) -> None:
        code = "import spillway, torch\ntorch.cuda.set_per_process_memory_fraction(0.5)\nspillway.install()"
        self.refuses(code, "<string>:2")

    def test_too_late_before_the_import(self) -> None:
        self.refuses("import torch; torch.zeros(1, device='cuda'); import spillway; spillway.install()", "not known")

    def test_fallback_warns_and_goes_on(self) -> None:
        code = """
import torch
torch.zeros(1, device="cuda")
import spillway
print(spillway.install(fallback=True))
torch.zeros(1, device="cuda")
try:
    spillway.tier_stats()
except spillway.SpillwayError as problem:
    print(problem)
"""
        done = warm.run(code)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("mode='none'", done.stdout)
        self.assertIn("PyTorch's own allocator serves", done.stderr)
        self.assertIn("tier_stats() needs Spillway's memory: CUDA is initialised already", done.stdout)

    def test_unknown_mode(self) -> None:
        self.refuses("import spillway; spillway.install('best')", "'best'", "full")

    def test_no_compiler(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.refuses(INSTALL, "no C++ compiler", "plain", CXX="no-such-compiler", SPILLWAY_CACHE=folder)

    def test_a_compiler_that_fails(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.refuses(INSTALL, "does not compile", "plain", CXX="false", SPILLWAY_CACHE=folder)

    def test_a_cache_that_cannot_be_written(self) -> None:
        self.refuses(INSTALL, "SPILLWAY_CACHE", SPILLWAY_CACHE="/proc/nowhere")

    def test_a_cache_that_may_not_be_looked_at(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0)
            # Root may look anywhere.
            code = f"import os\nif os.getuid() == 0:\n    os.setuid(65534)\n{INSTALL}"
            self.refuses(code, "cannot be kept", "SPILLWAY_CACHE", SPILLWAY_CACHE=f"{folder}/cache")

    def test_without_a_home_that_can_be_written_to_a_folder_of_the_users_own_serves(self) -> None:
        nobody = "import os, pwd\nos.environ.pop('HOME', None)\ndef nobody(_): raise KeyError\npwd.getpwuid = nobody\n"
        for code, environment in ((nobody, {}), ("", {"HOME": "/proc/nowhere"})):
            with self.subTest(environment), tempfile.TemporaryDirectory() as temporary:
                compiler = quick_compiler(Path(temporary))
                unnamed = {
                    "SPILLWAY_CACHE": "",
                    "XDG_CACHE_HOME": "",
                    "TMPDIR": temporary,
                    "CXX": compiler,
                    **environment,
                }
                done = warm.run(code + EXTENSION, **unnamed)
                (folder,) = Path(temporary).glob("spillway-*")
                (made,) = folder.glob("spillway_torch-*.so")
                self.assertEqual(done.stdout.strip(), str(made), done.stderr)
                self.assertIn(f"once; it is kept in {folder}", done.stderr)
                self.assertNotIn("once", warm.run(code + EXTENSION, **unnamed).stderr)
                # Where others could have put it there, it is not loaded.
                folder.chmod(0o777)
                self.refuses(code + EXTENSION, "open to others", "SPILLWAY_CACHE", **unnamed)

    def test_environments_with_the_same_pytorch_share_what_was_compiled(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            cache = f"{folder}/cache"
            first = warm.run(EXTENSION, SPILLWAY_CACHE=cache, CXX=quick_compiler(Path(folder)))
            (Path(folder) / "torch").symlink_to(torch_folder())
            moved = f"import sys; sys.path.insert(0, {folder!r}); {EXTENSION}; print(torch.__file__)"
            second = run_anew(moved, SPILLWAY_CACHE=cache, CXX="no-such-compiler")
            self.assertEqual(
                second.stdout.split(), [first.stdout.strip(), f"{folder}/torch/__init__.py"], second.stderr
            )

    def count_compilations(self, folder: str, prelude: str = "") -> int:
        """Of processes that start at once with an empty cache. Their compiler takes long enough to meet the others."""
        compiler = quick_compiler(Path(folder))
        code = f"import torch, spillway\n{prelude}\n{EXTENSION}"
        environment = {**os.environ, "CXX": compiler, "SPILLWAY_CACHE": f"{folder}/cache"}
        command = [sys.executable, "-c", code]
        processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        made = {process.communicate()[0].strip() for process in processes}
        self.assertEqual([process.returncode for process in processes], [0] * 4)
        self.assertEqual(len(made), 1)
        self.assertTrue(Path(made.pop()).is_file())
        return len((Path(folder) / "count").read_text())

    def test_processes_that_start_at_once_compile_once(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.count_compilations(folder), 1)

    def test_a_file_system_without_locks(self) -> None:
        prelude = """
import errno, fcntl
def refuse(*_): raise OSError(errno.ENOLCK, "no locks")
fcntl.flock = refuse
"""
        with tempfile.TemporaryDirectory() as folder:
            self.assertGreaterEqual(self.count_compilations(folder, prelude), 1)

    def test_a_broken_cached_extension(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(warm.run(INSTALL, SPILLWAY_CACHE=folder).stdout.strip(), "full")
            for made in Path(folder).iterdir():
                made.write_bytes(b"not a library")
            self.refuses(INSTALL, "delete it", SPILLWAY_CACHE=folder)

    def test_no_library(self) -> None:
        self.refuses(INSTALL, "SPILLWAY_LIBRARY", SPILLWAY_LIBRARY="/nowhere/libspillway.so.0")

    def test_another_backend_is_a_contradiction(self) -> None:
        self.refuses(INSTALL, "cudaMallocAsync", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")

    def test_another_pluggable_allocator_is_a_contradiction(self) -> None:
        code = """
import spillway, torch
from spillway._pytorch import hooks
torch.cuda.memory.change_current_allocator(torch.cuda.memory._CUDAAllocator(hooks.pluggable(torch, hooks.ALL)))
spillway.install()
"""
        self.refuses(code, "'pluggable' was chosen already", "remove one")

    def test_another_allocator_afterwards_is_a_contradiction(self) -> None:
        for mode in ("full", "plain"):
            code = f"""
import spillway, torch
from spillway._pytorch import hooks
spillway.install({mode!r})
other = torch.cuda.memory._CUDAAllocator(hooks.pluggable(torch, hooks.ALL))
torch.cuda.memory.change_current_allocator(other)
"""
            self.refuses(code, "another allocator", "remove one")

    def refuses_pytorch(self, source: str, *words: str) -> None:
        """`source` is all that this torch consists of."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "torch.py").write_text(source)
            path = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
            self.is_refused(run_anew(INSTALL, PYTHONPATH=path), *words)

    def test_a_pytorch_that_is_not_supported(self) -> None:
        for release, cuda, said in (
            ("2.8.0", "12.8", "upgrade to 2.9"),
            ("2.11.0", None, "install a CUDA build"),
            ("main", "13.0", "not understood"),
        ):
            source = f"""
from types import SimpleNamespace
__version__, version = {release!r}, SimpleNamespace(cuda={cuda!r})
cuda, _C = SimpleNamespace(is_initialized=lambda: False), SimpleNamespace(_cuda_init=lambda: None)
"""
            self.refuses_pytorch(source, release, said)

    def test_no_pytorch(self) -> None:
        self.refuses_pytorch("raise ImportError('half of it is missing')", "half of it is missing", "install torch")


class Settings(Case):
    def test_known_keys_are_answered(self) -> None:
        done = warm.run(INSTALL, PYTORCH_ALLOC_CONF="expandable_segments:True,max_split_size_mb:128")
        self.assertEqual(done.stdout.strip(), "full", done.stderr)
        self.assertIn("expandable_segments changes nothing under Spillway", done.stderr)
        self.assertIn("max_split_size_mb changes nothing under Spillway", done.stderr)

    def test_what_has_nothing_to_do_is_in_the_guide(self) -> None:
        guide = (Path(__file__).parents[2] / "docs/pytorch.md").read_text()
        for key, why in settings.UNNEEDED.items():
            self.assertRegex(guide, rf"\n\| [^|]*`{key}`[^|]* \| {re.escape(why)} \|")

    def test_wrong_values_are_refused(self) -> None:
        for value in ("much", "2", "-1", "nan"):
            done = warm.run(INSTALL, PYTORCH_ALLOC_CONF=f"per_process_memory_fraction:{value}")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("allowed: a number from 0 to 1", last_line(done.stderr))
        for setting in (
            "max_split_size_mb:abc",
            "max_split_size_mb:5",
            "max_split_size_mb:99999999999999999999",
            "expandable_segments:Flase",
            "garbage_collection_threshold:2",
            "roundup_power2_divisions:[256:3]",
            "no_such_key:1",
        ):
            said = f"PyTorch refuses PYTORCH_CUDA_ALLOC_CONF={setting} ("
            self.refuses(INSTALL, said, PYTORCH_CUDA_ALLOC_CONF=setting)

    def test_what_is_set_before_cuda_is_used_counts(self) -> None:
        """PyTorch's own allocator reads the environment then."""
        code = """
import os, spillway, torch
spillway.install({mode!r})
os.environ[{name!r}] = {value!r}
torch.zeros(1, device="cuda")
print(torch.cuda.get_per_process_memory_fraction())
"""
        for mode in ("full", "plain"):
            for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
                fraction = warm.run(code.format(mode=mode, name=name, value="per_process_memory_fraction:0.25"))
                self.assertEqual(fraction.stdout.split(), ["0.25"], fraction.stderr)
        name = "PYTORCH_CUDA_ALLOC_CONF"
        vain = warm.run(code.format(mode="full", name=name, value="max_split_size_mb:128"))
        self.assertEqual(vain.stderr.count("max_split_size_mb changes nothing under Spillway"), 1, vain.stderr)
        wrong = warm.run(code.format(mode="full", name=name, value="max_split_size_mb:abc"))
        self.assertNotEqual(wrong.returncode, 0)
        of_other_devices = "PYTORCH_HIP_ALLOC_CONF"
        ignored = warm.run(code.format(mode="full", name=of_other_devices, value="per_process_memory_fraction:0.25"))
        self.assertEqual(ignored.stdout.split(), ["1.0"], ignored.stderr)
        early = warm.run(code.format(mode="full", name="X", value=""), **{of_other_devices: "no_such_key:1"})
        self.assertEqual((early.stdout.split(), early.stderr), (["1.0"], ""))

    def test_a_remark_that_is_an_error_leaves_pytorchs_own(self) -> None:
        code = """
import os, warnings
import spillway, torch
warnings.simplefilter("error", spillway.SpillwayWarning)
try:
    spillway.install({!r})
except spillway.SpillwayWarning:
    print(spillway.installed().mode, torch.cuda.get_allocator_backend())
torch.zeros(1, device="cuda")
print(os.environ.get("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"))
"""
        for mode in ("full", "plain"):
            done = warm.run(code.format(mode), PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
            self.assertEqual(done.stdout.split(), ["none", "native", "None"], done.stderr)
        done = warm.run(code.format("full"), TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1")
        self.assertEqual(done.stdout.split(), ["none", "native", "1"], done.stderr)

    def test_no_caching_is_honoured(self) -> None:
        code = f"{INSTALL}; import torch; x = torch.zeros(1, device='cuda'); print(torch.cuda.memory_allocated())"
        self.assertEqual(warm.run(code, PYTORCH_NO_CUDA_MEMORY_CACHING="1").stdout.split(), ["full", "0"])

    def test_a_wrong_option_of_spillways_own(self) -> None:
        code = f"{INSTALL}; import torch; torch.zeros(1, device='cuda')"
        lenient = warm.run(code, SPILLWAY_CONF="no_such_option:1")
        self.assertEqual(lenient.returncode, 0)
        self.assertIn("unknown option 'no_such_option'", lenient.stderr)
        strict = warm.run(code, SPILLWAY_CONF="no_such_option:1,strict:on")
        self.assertNotEqual(strict.returncode, 0)
        self.assertIn("unknown option 'no_such_option'", last_line(strict.stderr))

    @unittest.skipIf("SPILLWAY_TEST_GPU" in os.environ, "an old driver is simulated")
    def test_a_driver_that_is_too_old(self) -> None:
        done = warm.run(f"{INSTALL}; import torch; torch.zeros(1, device='cuda')", SPILLWAY_SIM="version:11080")
        self.assertIn("the driver serves CUDA 11.8; 12.0 or newer is needed", last_line(done.stderr))

    def test_fraction_is_honoured(self) -> None:
        # A small share of the device: whether overflow may place a large one depends on what the host has free.
        code = f"""
{INSTALL}
import torch
print(torch.cuda.get_per_process_memory_fraction())
try:
    torch.empty(torch.cuda.get_device_properties(0).total_memory // 64, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("limited")
"""
        # An option whose name ends like that of the limit is another.
        for own, said in (("", ["limited"]), ("overflow:host,overflow_limit:32GiB", [])):
            done = warm.run(code, PYTORCH_ALLOC_CONF="per_process_memory_fraction:0.01", SPILLWAY_CONF=own)
            self.assertEqual(done.stdout.split(), ["full", "0.01", *said], done.stderr)

    def test_the_fraction_is_that_of_the_limit_in_force(self) -> None:
        code = """
import spillway, torch
spillway.install({!r})
get, choose = torch.cuda.get_per_process_memory_fraction, torch.cuda.set_per_process_memory_fraction
print(get(), end=" ")
choose(0.125)
print(get(), end=" ")
choose(1.0)
print(get())
"""
        for mode in ("full", "plain"):
            for environment, fractions in (
                ({}, "1.0 0.125 1.0"),
                ({"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.3"}, "0.3 0.125 1.0"),
                ({"SPILLWAY_CONF": "limit:25%"}, "0.25 0.125 0.25"),
                (
                    {"SPILLWAY_CONF": "limit:10%", "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.3"},
                    "0.1 0.1 0.1",
                ),
            ):
                done = warm.run(code.format(mode), **environment)
                self.assertEqual(done.stdout.strip(), fractions, done.stderr)

    def test_every_digit_of_the_fraction_counts(self) -> None:
        code = """
import spillway, torch
from spillway._library import get_limit
spillway.install()
torch.cuda.synchronize()
print(get_limit(0), torch.cuda.get_device_properties(0).total_memory)
"""
        for fraction in ("1e-7", "0.123456789"):
            done = warm.run(code, PYTORCH_ALLOC_CONF=f"per_process_memory_fraction:{fraction}")
            self.assertEqual(done.returncode, 0, done.stderr)
            limit, total = map(int, done.stdout.split())
            self.assertAlmostEqual(limit, float(fraction) * total, delta=1)

    def test_nccl_is_not_to_register_segments_that_change(self) -> None:
        name = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
        done = warm.run(f"{INSTALL}; import os; print(os.environ['{name}'])", **{name: "1"})
        self.assertEqual(done.stdout.split(), ["full", "0"], done.stderr)
        self.assertIn(f"{name} changes nothing under Spillway", done.stderr)


if __name__ == "__main__":
    unittest.main()
