"""The compiled codec. All else about the package stands in pyproject.toml.

It is optional: where there is no C compiler, or the headers of Python are missing, the build says so and goes
on without it, and the plain functions do its work.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

codec = Extension("omq_storage._codec", ["storage/omq_storage/_codec.pyx"], extra_compile_args=["-O3"])

# What Cython writes goes to build/, so that nothing generated stands beside the sources.
(made,) = cythonize([codec], build_dir="build")
made.optional = True

setup(ext_modules=[made])
