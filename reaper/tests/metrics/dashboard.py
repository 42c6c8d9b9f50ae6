"""Reads a dashboard with Grafana's own types and writes it again: what comes out must be what went in.

A key that Grafana does not know at its place is lost on the way. That values are of their types is looked at
beside, as Python does not.
"""

import enum
import json
import sys
import types
import typing

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def differences(before, after, place="dashboard"):
    """What was lost or changed. What was not there may get its default."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before):
            yield from differences(before.get(key), after.get(key), f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after)):
            yield from differences(one, other, f"{place}[{index}]")
    elif before != after:
        yield f"{place}: {before!r} became {after!r}"


def misfits(value, kind, place="dashboard"):
    """Values that are not of the types of their places."""
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if value is None or kind in (object, typing.Any):
        pass
    elif origin in (typing.Union, types.UnionType):
        answers = [list(misfits(value, one, place)) for one in arguments]
        if [] not in answers:
            yield from answers[0]
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{place}: {value!r} is none of {arguments}"
    elif origin is list and isinstance(value, list):
        for index, one in enumerate(value):
            yield from misfits(one, arguments[0], f"{place}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, one in value.items():
            yield from misfits(one, arguments[1], f"{place}.{key}")
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        if value not in [member.value for member in kind]:
            yield f"{place}: {value!r} is no {kind.__name__}"
    elif isinstance(value, dict) and hasattr(kind, "from_json"):
        # Left as it was read.
        yield from differences(value, kind.from_json(value).to_json(), place)
    elif not isinstance(value, (int, float) if kind is float else origin or kind):
        yield f"{place}: {value!r} is no {kind}"
    # What a plugin reads has the type of the plugin, whatever the place says.
    if type(value).__module__.startswith("grafana_foundation_sdk.models"):
        for name, hint in typing.get_type_hints(type(value)).items():
            yield from misfits(getattr(value, name, None), hint, f"{place}.{name}")


def main():
    register_default_plugins()
    with open(sys.argv[1], encoding="utf-8") as file:
        before = json.load(file)
    dashboard = Dashboard.from_json(before)
    after = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    found = [*differences(before, after), *misfits(dashboard, Dashboard)]
    for difference in found:
        print(difference)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
