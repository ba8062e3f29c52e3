"""Parameter groups of the engine from expressions, by its public API."""

from collections.abc import Mapping

from modules import Module, ParamGroup

from .group_expressions import (
    Complement,
    Difference,
    Everything,
    Group,
    Ids,
    IdsAt,
    IdsOfPart,
    Intersection,
    Kept,
    Paths,
    Patterns,
    Pieces,
    Union,
)


def param_group(group: Group, module: Module, kept: Mapping[str, ParamGroup]) -> ParamGroup:
    """The group that an expression means, made from a module; one alone by the singular constructors.

    Raises:
        GroupError: a pattern is no regular expression.
    """
    match group:
        case Everything():
            return ParamGroup.all()
        case Paths(paths):
            return ParamGroup.from_path(paths[0]) if len(paths) == 1 else ParamGroup.from_paths(paths)
        case Ids(ids):
            return ParamGroup.from_ids(ids)
        case IdsAt(paths):
            return ParamGroup.from_ids([module.at(path).id for path in paths])
        case IdsOfPart(path):
            return ParamGroup.ids_from_module(module.at(path))
        case Kept(name):
            return kept[name]
        case Pieces(pieces, at_least_one):
            if at_least_one:
                return ParamGroup.from_any_predicates(pieces)
            return ParamGroup.from_predicate(pieces[0]) if len(pieces) == 1 else ParamGroup.from_predicates(pieces)
        case Patterns(patterns, at_least_one):
            if at_least_one:
                return ParamGroup.from_any_regexes(patterns)
            return ParamGroup.from_regex(patterns[0]) if len(patterns) == 1 else ParamGroup.from_regexes(patterns)
        case Complement(one):
            return ~param_group(one, module, kept)
    one, other = param_group(group.one, module, kept), param_group(group.other, module, kept)
    match group:
        case Union():
            return one.fuse(other) if group.burn else one | other
        case Difference():
            return one.exclude(other) if group.burn else one - other
        case Intersection():
            return one & other
