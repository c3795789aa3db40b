"""Finds what is wrong with the name of a user's function before a worker starts.

The function's file is read for that, not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpubalance.errors import BadInput
from gpubalance.text import clean

# What a name has that likely builds what the option is for.
_LIKELY = {"--model": ("build", "model"), "--data": ("data",)}
# What is bound within these is not bound in the file.
_WITH_OWN_NAMES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.comprehension,
)
# Code that may make names which can't be read from it.
_MAKES_NAMES = {"globals", "vars", "setattr", "exec", "__getattr__"}


def refuse_unusable(option: str, name: str) -> None:
    """Raises BadInput if a file is not valid Python, or has no such function that can be called.

    A function that the file may get in another way, such as by an import, is left to the worker.
    """
    place, _, wanted = name.rpartition(":")
    file = place or name
    if not file.endswith(".py"):
        return
    module = _parsed(option, Path(file))
    functions = {
        node.name: node for node in module.body if isinstance(node, ast.FunctionDef)
    }
    listed = f"it has: {', '.join(map(clean, functions)) or 'none'}"
    if not (place and wanted):
        likely = _likeliest(list(functions), _LIKELY[option])
        raise BadInput(
            f"{option} {clean(name)} names a file but no function in it",
            remedy=f"name the function: {option} {clean(file)}:{clean(likely)}; {listed}",
        )
    if wanted in functions:
        _refuse_arguments(option, name, functions[wanted])
    elif not _may_have(module, wanted):
        raise BadInput(
            f"{clean(place)} has no function {clean(wanted)!r}", remedy=listed
        )


def _likeliest(functions: Sequence[str], words: Sequence[str]) -> str:
    """The first function with one of these words in its name, else the first of all."""
    for function in functions:
        if any(word in function for word in words):
            return function
    return functions[0] if functions else "function"


def as_data(name: str) -> str:
    """The data of that name in a line of Python: a call of the function, or the file's value."""
    place, _, wanted = name.rpartition(":")
    try:
        module = ast.parse(Path(place).read_bytes())
    # A module's name, or a file that has gone.
    except (OSError, ValueError, SyntaxError, RecursionError):
        return f"{wanted}()"
    return f"{wanted}()" if _is_function(module, wanted) else wanted


def _is_function(module: ast.Module, name: str) -> bool:
    """Whether what a file last binds to a name is a function, as far as its text shows.

    A name from elsewhere, as by an import, is taken for a function.
    """
    is_function = True
    for node in _run_by_import(module):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            is_function = True
        elif (
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Store)
        ):
            is_function = False  # the target of an assignment, a loop or a `with`
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                is_lambda = isinstance(node.value, ast.Lambda)
                is_function = is_lambda or "partial(" in ast.unparse(node.value)
    return is_function


def _run_by_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a file that an import runs, each after its children."""
    if not isinstance(node, _WITH_OWN_NAMES):
        for child in ast.iter_child_nodes(node):
            yield from _run_by_import(child)
    yield node


def _parsed(option: str, file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        raise BadInput(
            f"{option}: {clean(str(file))}{where}: {error.msg}",
            remedy="correct it there",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{option}: {clean(str(file))} can't be read: {clean(str(error))}"
        ) from None


def _refuse_arguments(option: str, name: str, function: ast.FunctionDef) -> None:
    if function.decorator_list:  # which may give what it needs
        return
    arguments = function.args
    positional = arguments.posonlyargs + arguments.args
    needed = positional[: len(positional) - len(arguments.defaults)]
    for argument, default in zip(
        arguments.kwonlyargs, arguments.kw_defaults, strict=True
    ):
        if default is None:
            needed.append(argument)
    if needed:
        raise BadInput(
            f"{option} {clean(name)} needs arguments: "
            f"{', '.join(argument.arg for argument in needed)}",
            remedy="give the arguments defaults, or wrap the function in one that "
            "needs none",
        )


def _may_have(module: ast.Module, wanted: str) -> bool:
    """Whether the file has the name in any other place, or code that may make it."""
    names = set[str]()
    for node in ast.walk(module):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return wanted in names or "*" in names or not names.isdisjoint(_MAKES_NAMES)
