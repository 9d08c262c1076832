"""The example trace in the repository is what its script writes: usage: example_trace_test.py FOLDER SCRATCH_FILE."""

import gzip
import pathlib
import subprocess
import sys

folder, scratch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
subprocess.run([sys.executable, str(folder / "make_trace.py"), "--output", str(scratch)], check=True)
# Unpacked: how zlib packs may differ between its versions.
if gzip.decompress(scratch.read_bytes()) != gzip.decompress((folder / "small_transformer.pickle.gz").read_bytes()):
    sys.exit("examples/traces/small_transformer.pickle.gz is not what make_trace.py writes: run it and commit the file")
