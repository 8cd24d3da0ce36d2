"""A CloudFormation template as values: its tags read, its functions carried out for given parameters.

As much of it as our template uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import yaml

# Any: a template is a tree of whatever YAML has.
Tree = Any
_NOTHING: Final = {"Ref": "AWS::NoValue"}
_VARIABLE: Final = re.compile(r"\$\{([^}]+)\}")


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's tags as what they are short for: `!Sub x` is `{"Fn::Sub": "x"}`."""


def _tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Tree:
    name = suffix if suffix == "Ref" else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        return {name: loader.construct_scalar(node)}
    assert isinstance(node, yaml.SequenceNode)
    return {name: loader.construct_sequence(node, deep=True)}


_Loader.add_multi_constructor("!", cast("Callable[[yaml.SafeLoader, str, yaml.Node], Tree]", _tagged))


def load(text: str) -> dict[str, Tree]:
    """The template, functions unresolved."""
    return cast("dict[str, Tree]", yaml.load(text, Loader=_Loader))


class Resolver:
    """Carries functions out.

    Args:
        template: as `load` gives it.
        values: of parameters and pseudo parameters, and of attributes as `Table.Arn`.
    """

    def __init__(self, template: Mapping[str, Tree], values: Mapping[str, str]) -> None:
        self._values = values
        conditions: Mapping[str, Tree] = template.get("Conditions", {})
        self._conditions = {name: self._holds(each) for name, each in conditions.items()}

    def resolve(self, tree: Tree) -> Tree:
        """The tree with every function replaced by its value."""
        if isinstance(tree, list):
            return [found for each in tree if (found := self.resolve(each)) != _NOTHING]
        if not isinstance(tree, dict):
            return tree
        table = cast("dict[str, Tree]", tree)
        if len(table) == 1:
            ((name, words),) = table.items()
            if name in {"Ref", "Fn::Sub", "Fn::GetAtt", "Fn::If"}:
                return self._call(name, words)
        return {name: found for name, each in table.items() if (found := self.resolve(each)) != _NOTHING}

    def _call(self, name: str, words: Tree) -> Tree:
        match name:
            case "Ref":
                return _NOTHING if words == "AWS::NoValue" else self._values[words]
            case "Fn::Sub":
                return _VARIABLE.sub(lambda match: self._values[match[1]], words)
            case "Fn::GetAtt":
                return self._values[words]
            case _:
                condition, then, otherwise = words
                return self.resolve(then if self._conditions[condition] else otherwise)

    def _holds(self, condition: Tree) -> bool:
        one, other = self.resolve(condition["Fn::Equals"])
        return bool(one == other)
