"""What import contracts cannot say in a list: the domain imports the standard library alone."""

import sys

import grimp
import pytest


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("app", include_external_packages=True, cache_dir=None)


def _imported_by(graph: grimp.ImportGraph, package: str) -> set[str]:
    modules = {package} | graph.find_descendants(package)
    found = set[str]().union(*map(graph.find_modules_directly_imported_by, modules))
    return {name for name in found if name != "app" and not name.startswith("app.")}


def test_domain_imports_nothing_but_the_standard_library(graph: grimp.ImportGraph) -> None:
    assert _imported_by(graph, "app.domain") <= sys.stdlib_module_names


def test_demo_pipelines_import_nothing_of_ours(graph: grimp.ImportGraph) -> None:
    assert _imported_by(graph, "app.pipelines.demo") <= sys.stdlib_module_names
    assert not [
        name
        for name in graph.find_modules_directly_imported_by("app.pipelines.demo")
        if name.startswith("app.")
    ]
