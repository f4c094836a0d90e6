#!/usr/bin/env python3
"""Builds DeepInfer's own C++ module for a machine without a GPU, and nereid_peek. The package's sources are compiled
unchanged; two files that need CUDA are replaced by stubs/.

usage: build.py PACKAGE OUT     (run with the Python that has torch; clang++-19 and ninja on the PATH or in that Python)

PACKAGE: an unpacked DeepInfer source distribution, only read. OUT gets _C.so and nereid_peek.so. About 4 CPU-minutes.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

HERE = pathlib.Path(__file__).resolve().parent
PEEK = HERE.parents[2] / "python/nereid_deepinfer/csrc/nereid_peek.cc"
SOURCES = """pybind engine/pybind engine/pybind_sequence engine/pybind_scheduler engine/pybind_output engine/zos
engine/prepare_sample engine/input_metadata/block_load_plan engine/input_metadata/prepare_tensor_input_base
engine/input_metadata/prepare_tensor_input_v4 graph_timer/pybind""".split()


def has_format(compiler: str) -> bool:
    probe = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], input=b"#include <format>\n",
                           stderr=subprocess.DEVNULL, check=False)
    return probe.returncode == 0


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    package, out = (pathlib.Path(a).resolve() for a in sys.argv[1:])
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit(f"{sys.executable} has no torch")
    torch = pathlib.Path(spec.origin).parent
    compiler = os.environ.get("CXX", "clang++-19")
    (out / "obj").mkdir(parents=True, exist_ok=True)
    pch = out / "obj/prelude.pch"
    flags = ["-std=c++20", os.environ.get("OPT", "-O1"), "-fPIC", "-fvisibility=hidden", "-D_GLIBCXX_USE_CXX11_ABI=1",
             "-DTORCH_EXTENSION_NAME=_C", "-DTORCH_API_INCLUDE_EXTENSION_H", "-w", f"-I{package}/csrc", f"-I{HERE}/stubs"]
    if not has_format(compiler):
        flags.append(f"-isystem {HERE}/stubs/nofmt")
    for folder in (torch / "include", torch / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]):
        flags.append(f"-isystem {folder}")
    lib = torch / "lib"
    lines = [
        f"flags = {' '.join(flags)}",
        "rule pch", f"  command = {compiler} $flags -x c++-header $in -o $out",
        "rule cc", f"  command = {compiler} $flags -include-pch {pch} -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d", "  deps = gcc",
        "rule link",
        f"  command = {compiler} -shared $in -o $out -L{lib} -Wl,-rpath,{lib} -ltorch_python -ltorch -ltorch_cpu -lc10 -lpthread",
        f"build {pch}: pch {HERE}/stubs/prelude.h",
    ]
    objects = []
    for source in [package / f"csrc/{name}.cpp" for name in SOURCES] + sorted((HERE / "stubs").glob("*.cc")):
        objects.append(f"{out}/obj/{source.parent.name}_{source.stem}.o")
        lines.append(f"build {objects[-1]}: cc {source} | {pch}")
    lines += [f"build {out}/_C.so: link {' '.join(objects)}", f"build {out}/obj/peek.o: cc {PEEK} | {pch}",
              f"build {out}/nereid_peek.so: link {out}/obj/peek.o"]
    (out / "build.ninja").write_text("\n".join(lines) + "\n")
    ninja = shutil.which("ninja") or str(pathlib.Path(sys.executable).with_name("ninja"))
    return subprocess.run([ninja, "-j", os.environ.get("NEREID_JOBS", "2"), "-C", str(out), "-f", str(out / "build.ninja")],
                          check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
