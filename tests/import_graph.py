"""What Python sources import, read from their syntax trees; nothing is executed."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    target: str  # a module, in full: xlaserve.core.step, jax.numpy
    line: int
    typing_only: bool  # under `if TYPE_CHECKING:`
    at_import: bool  # runs when the module is imported: not inside a function


class Sources:
    """Modules by full name, as they would be imported; packages by the name of the folder."""

    def __init__(self, texts: dict[str, str], packages: frozenset[str] = frozenset()):
        self.texts = texts
        self._packages = packages
        self._trees = {name: ast.parse(text) for name, text in texts.items()}
        self.imports = {name: tuple(self._imports_of(name)) for name in texts}

    @classmethod
    def read(cls, *roots: Path) -> "Sources":
        """All modules below `roots`, each a package's folder."""
        texts, packages = {}, set()
        for root in roots:
            for path in sorted(root.rglob("*.py")):
                name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
                if path.name == "__init__.py":
                    name = name.removesuffix(".__init__")
                    packages.add(name)
                texts[name] = path.read_text(encoding="utf-8")
        return cls(texts, frozenset(packages))

    def tree(self, name: str) -> ast.Module:
        return self._trees[name]

    def closure(self, name: str) -> dict[str, tuple[str, ...]]:
        """All modules that `name` needs to run, ours and others, each with the way to it from `name`.

        Imports for type checkers do not count; those inside functions do. Importing a.b.c runs a and a.b first: of
        those only what they import at once counts, so that a package may offer a name that loads what it needs later.
        """
        ways: dict[str, tuple[str, ...]] = {name: (name,)}
        pending = [(name, True), *((parent, False) for parent in _parents(name))]
        done = set()
        while pending:
            module, whole = pending.pop()
            if (module, whole) in done:
                continue
            done.add((module, whole))
            way = ways.setdefault(module, (name, module))
            for imported in self.imports.get(module, ()):
                if imported.typing_only or not (whole or imported.at_import):
                    continue
                for target in (*_parents(imported.target), imported.target):
                    ways.setdefault(target, (*way, target))
                    pending.append((target, target == imported.target))
        return ways

    def _imports_of(self, module: str) -> Iterator[Import]:
        for node, typing_only, at_import in _walk(self._trees[module]):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets = self._targets(module, node)
            else:
                continue
            for target in targets:
                yield Import(target, node.lineno, typing_only, at_import)

    def _targets(self, module: str, node: ast.ImportFrom) -> list[str]:
        """`from a import b` imports a.b where that is a module of ours, else a."""
        base = node.module or ""
        if node.level:
            package = module.split(".") if module in self._packages else module.split(".")[:-1]
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
        names = [f"{base}.{alias.name}" for alias in node.names]
        return list(dict.fromkeys(name if name in self.texts else base for name in names))


def _walk(node: ast.AST, typing_only: bool = False, at_import: bool = True) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Every node below `node`: (node, is under `if TYPE_CHECKING:`, runs on import)."""
    for child in ast.iter_child_nodes(node):
        yield child, typing_only, at_import
        in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for part in child.body:
                yield part, True, at_import
                yield from _walk(part, True, at_import)
            for part in child.orelse:
                yield part, typing_only, at_import
                yield from _walk(part, typing_only, at_import)
        else:
            yield from _walk(child, typing_only, at_import and not in_function)


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]
