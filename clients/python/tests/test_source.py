"""Tests that the package can be read: by Python 3.9, by people, and by programs that check types."""

import ast
import glob
import inspect
import os
import unittest

import distlock
from distlock import aio

FOLDER = os.path.dirname(distlock.__file__)


class SourceTest(unittest.TestCase):
    def test_the_grammar_is_that_of_python_3_9(self):
        files = glob.glob(FOLDER + "/*.py")
        self.assertGreater(len(files), 5)
        for name in files:
            with open(name, encoding="utf-8") as f:
                ast.parse(f.read(), name, feature_version=(3, 9))
        self.assertTrue(os.path.exists(FOLDER + "/py.typed"))

    def test_all_is_described_and_typed(self):
        for module in distlock, aio:
            self.assertTrue(module.__doc__)
            for name in module.__all__:
                for path, thing in public(name, getattr(module, name)):
                    with self.subTest(f"{module.__name__}.{path}"):
                        self.assertTrue(inspect.getdoc(thing), "no description")
                        if inspect.isfunction(thing):
                            signature = inspect.signature(thing)
                            missing = [p.name for p in list(signature.parameters.values())[1:] if p.annotation is p.empty]
                            self.assertEqual([], missing)
                            self.assertIsNot(signature.return_annotation, signature.empty)

    def test_threads_and_asyncio_have_the_same_names(self):
        self.assertEqual(distlock.__all__, aio.__all__)
        for name in "Locks", "Lease", "Leases":
            of_threads, of_asyncio = (dict(public(name, getattr(m, name))) for m in (distlock, aio))
            self.assertEqual(set(of_threads), set(of_asyncio))
            for path, thing in of_threads.items():
                if inspect.isfunction(thing):
                    self.assertEqual(list(inspect.signature(thing).parameters), list(inspect.signature(of_asyncio[path]).parameters), path)


def public(name, thing):
    """Yields a class, and what it has."""
    yield name, thing
    for key in dir(thing):
        if not key.startswith("_"):
            member = inspect.getattr_static(thing, key)
            if inspect.isfunction(member) or isinstance(member, property):
                yield f"{name}.{key}", member


if __name__ == "__main__":
    unittest.main()
