"""The compiled part, which is optional: without a compiler the package installs all the same.

All else stands in pyproject.toml. SNAPSCOPE_BUILD_NATIVE=0 leaves the compiled part out, =1 insists on it.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

NATIVE = "snapscope/native"
WANTED = os.environ.get("SNAPSCOPE_BUILD_NATIVE", "")

extensions = []
if WANTED != "0":
    try:
        from Cython.Build import cythonize
    except ImportError:
        if WANTED == "1":
            raise
    else:
        extensions = cythonize(
            [
                Extension(
                    "snapscope.native._core",
                    [f"{NATIVE}/_core.pyx", f"{NATIVE}/reader.c", f"{NATIVE}/walk.c"],
                    depends=[f"{NATIVE}/reader.h", f"{NATIVE}/walk.h"],
                    include_dirs=[NATIVE],
                )
            ],
            build_dir="build/cython",
        )
        for extension in extensions:
            extension.optional = WANTED != "1"

setup(ext_modules=extensions)
