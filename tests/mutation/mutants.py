"""The mutants of a file: each is the file with one small fault, made by cosmic-ray's operators.

Left out is what no test could or should notice: annotations, aliases of types, text for people (the log, errors), what a
dataclass forbids its users, imports for type checkers; and a mutant that is the same to Python as the file or another mutant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from types import CodeType
from typing import Final, Protocol, cast

Place = tuple[int, int]


class Node(Protocol):
    """Of parso's tree. `children` is missing in a leaf."""

    type: str
    parent: Node | None
    start_pos: Place
    end_pos: Place

    def get_code(self, include_prefix: bool = ...) -> str: ...


class Operator(Protocol):
    """Of cosmic-ray."""

    def mutation_positions(self, node: Node) -> Iterable[tuple[Place, Place]]: ...

    def mutate(self, node: Node, index: int) -> Node | None: ...


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one fault.

    Args:
        within: class and function that it is in; empty at the top of the file.
        line: of the source, without indentation.
        becomes: the line with the fault; empty if it is removed.
        first_row: number of the first line of its statement.
        last_row: and of the last one. A test that runs none of them cannot notice.
        text: the whole file.
    """

    within: str
    line: str
    becomes: str
    first_row: int
    last_row: int
    text: str

    @property
    def name(self) -> str:
        """The same in each run, as long as the file is the same."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


_COMPARISONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Eq": ("NotEq", "LtE", "GtE"),
    "NotEq": ("Eq", "Lt", "Gt"),
    "Lt": ("LtE", "GtE", "NotEq"),
    "LtE": ("Lt", "Gt", "Eq"),
    "Gt": ("GtE", "LtE", "NotEq"),
    "GtE": ("Gt", "Lt", "Eq"),
    "Is": ("IsNot",),
    "IsNot": ("Is",),
}
_BINARY: Final[Mapping[str, tuple[str, ...]]] = {
    "Add": ("Sub",),
    "Sub": ("Add",),
    "Mul": ("Div", "FloorDiv"),
    "Div": ("Mul", "FloorDiv"),
    "FloorDiv": ("Mul", "Div"),
    "Mod": ("FloorDiv",),
    "Pow": ("Mul",),
    "RShift": ("LShift",),
    "LShift": ("RShift",),
    "BitOr": ("BitAnd",),
    "BitAnd": ("BitOr",),
    "BitXor": ("BitAnd",),
}
OPERATORS: Final = (
    *(f"ReplaceComparisonOperator_{it}_{to}" for it, others in _COMPARISONS.items() for to in others),
    *(f"ReplaceBinaryOperator_{it}_{to}" for it, others in _BINARY.items() for to in others),
    *(f"ReplaceUnaryOperator_Delete_{it}" for it in ("USub", "Invert", "Not")),
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ZeroIterationForLoop",
)
"""Of cosmic-ray's operators those whose faults are near the truth: `<` becomes `<=`; `a + b` does not become `a << b`."""

_COMPOUND: Final = frozenset(
    {
        "file_input",
        "suite",
        "if_stmt",
        "while_stmt",
        "for_stmt",
        "with_stmt",
        "try_stmt",
        "funcdef",
        "classdef",
    }
)
_TEXTS: Final = frozenset({"decorator", "atom_expr", "power", "expr_stmt"})
_FOR_READERS: Final = re.compile(r"@(\w+\.)*(override|final|overload|abstractmethod|runtime_checkable)\b")
_LOGGED: Final = re.compile(r"(\w+\.)*_?log\.(debug|info|warning|error|exception)\(")
_ALIAS: Final = re.compile(r"\w+\s*=[\w.\[\], |\"\s()]+\Z")


def mutants_of(source: str, path: str) -> list[Mutant]:
    """In the order of the file.

    Args:
        source: of the file.
        path: that is shown.
    """
    root = cast("Node", import_module("cosmic_ray.ast").get_ast(source))
    known = {plain(compile(source, path, "exec", dont_inherit=True))}
    found: list[Mutant] = []
    for node, operator, index in _chances(root, _operators()):
        try:
            text = _mutated(root, node, operator, index)
            code = plain(compile(text, path, "exec", dont_inherit=True))
        except (AttributeError, SyntaxError):  # what the operator does not know (`except a.b`), or no Python
            continue
        if code not in known:
            known.add(code)
            place = list(operator.mutation_positions(node))[index][0]
            found.append(_mutant(source, text, node, place[0]))
    return sorted(found, key=lambda each: (each.first_row, each.last_row))


def plain(code: CodeType) -> CodeType:
    """What it does, to compare it: without the columns in which it stands."""
    inner = tuple(plain(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=inner)


def _operators() -> list[Operator]:
    provider = import_module("cosmic_ray.operators.provider").OperatorProvider()
    return [cast("Operator", provider[name]()) for name in OPERATORS]


def _chances(root: Node, operators: Sequence[Operator]) -> list[tuple[Node, Operator, int]]:
    """A node, what can be done to it, and how often."""
    return [
        (node, operator, index)
        for node in _nodes(root)
        if not _without_meaning(node)
        for operator in operators
        if not (type(operator).__name__ == "AddNot" and _is_negated_otherwise(node))
        for index, _ in enumerate(operator.mutation_positions(node))
    ]


def _is_negated_otherwise(node: Node) -> bool:
    """Whether other operators make the condition's opposite: `not a` becomes `a`, `a < b` becomes `a >= b`."""
    if node.type not in {"if_stmt", "while_stmt", "assert_stmt", "test"}:
        return False
    condition = children(node)[2 if node.type == "test" else 1]
    return condition.type == "not_test" or (
        condition.type == "comparison" and not re.search(r"\bin\b", condition.get_code())
    )


def children(node: Node) -> list[Node]:
    """None of a leaf."""
    return cast("list[Node]", getattr(node, "children", []))


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _nodes(child)


def _upwards(node: Node) -> Iterator[Node]:
    """The node, what it is in, and so on."""
    above: Node | None = node
    while above is not None:
        yield above
        above = above.parent


def _without_meaning(node: Node) -> bool:
    if node.type == "if_stmt" and "TYPE_CHECKING" in children(node)[1].get_code():
        return True
    if node.type == "decorator" and _FOR_READERS.match(node.get_code(include_prefix=False)):
        return True
    if node.parent is not None and node.parent.type == "parameters":  # the `*` before keywords
        return True
    in_text = False
    for child, above in pairwise(_upwards(node)):
        in_text = in_text or above.type == "fstring"
        if _is_for_readers(child, above) or (in_text and above.type in {"raise_stmt", "assert_stmt"}):
            return True
    return False


def _is_for_readers(child: Node, above: Node) -> bool:
    """Whether what is in `child` says nothing to Python, or something only to people."""
    if above.type in _TEXTS:
        return _says_nothing(above)
    return (
        (above.type == "annassign" and children(above)[1] is child)
        or (above.type == "tfpdef" and children(above)[0] is not child)
        or (above.type == "funcdef" and getattr(above, "annotation", None) is child)
    )


def _says_nothing(above: Node) -> bool:
    """Whether it is a call of the log, what a dataclass is told, or an alias of a type."""
    text = above.get_code(include_prefix=False)
    return (
        (above.type == "decorator" and "dataclass" in text)
        or (above.type in {"atom_expr", "power"} and _LOGGED.match(text) is not None)
        or (above.type == "expr_stmt" and not _within(above) and _ALIAS.match(text) is not None)
    )


def _mutated(root: Node, node: Node, operator: Operator, index: int) -> str:
    """The text with the fault; the tree is as before afterwards."""
    siblings = children(node.parent) if node.parent is not None else []
    kept = list(siblings)
    before = [(each, list(children(each)), getattr(each, "value", None)) for each in _nodes(node)]
    changed = operator.mutate(node, index)
    if changed is not node:
        siblings[:] = [each for each in (changed if one is node else one for one in kept) if each is not None]
    text = root.get_code()
    siblings[:] = kept
    for each, inner, value in before:
        if inner:
            children(each)[:] = inner
        if value is not None:
            setattr(each, "value", value)  # noqa: B010 - of a leaf only
    return text


def _mutant(source: str, text: str, node: Node, row: int) -> Mutant:
    lines, others = source.splitlines(), text.splitlines()
    first, last = _rows(node)
    removed = node.type == "decorator"
    return Mutant(
        within=_within(node),
        line=lines[row - 1].strip(),
        becomes="" if removed else others[row - 1].strip(),
        first_row=min(first, row),
        last_row=last,
        text=text,
    )


def _rows(node: Node) -> tuple[int, int]:
    """Of the simple statement that a node is in, or of its part of the head of a compound one."""
    inner = next((each for each, above in pairwise(_upwards(node)) if above.type in _COMPOUND), node)
    if inner.type in _COMPOUND:  # the operator belongs to the whole, the fault is in its head
        heads = [each for each in children(inner) if each.type not in {"suite", "keyword", "operator"}]
        inner = heads[0]
    (first, _), (last, column) = inner.start_pos, inner.end_pos
    return first, last if column else last - 1  # the end of a line is the start of the next one


def _within(node: Node) -> str:
    """Names of the class and the function."""
    names = [
        children(each)[1].get_code(include_prefix=False)
        for each in _upwards(node)
        if each.type in {"funcdef", "classdef"} and each is not node
    ]
    return ".".join(reversed(names))
