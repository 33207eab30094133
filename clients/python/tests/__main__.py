"""python3 tests runs the test files beside each other, since they mostly wait. With arguments it runs those files.

Each is python3 -m unittest discover -s tests -p FILE.
"""

import glob
import os
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
files = sys.argv[1:] or sorted(os.path.basename(f) for f in glob.glob(here + "/test_*.py"))
runs = {
    f: subprocess.Popen(
        [sys.executable, *(f"-W{w}" for w in sys.warnoptions), "-m", "unittest", "discover", "-s", here, "-p", f],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    for f in files
}
failed = 0
for name, run in runs.items():
    out = run.communicate()[0]
    failed += run.returncode != 0
    print(f"{name}:\n{out}" if run.returncode else f"{name}: {next(x for x in out.splitlines() if x.startswith('Ran '))}")
sys.exit(failed != 0)
