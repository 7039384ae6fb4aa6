"""Every class and type alias of the project has a name of its own, except those that are listed here with the
reason.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

SHARED = {
    "The blocking client has the names of the client whose calls it makes.": {
        "BodyPieces": {"omq.blocking.opened", "omq.client.opened"},
        "Client": {"omq.blocking.client", "omq.client.client"},
        "Feed": {"omq.blocking.receiving", "omq.client.feed"},
        "OpenMessage": {"omq.blocking.opened", "omq.client.opened"},
        "Rounds": {"omq.blocking.watching", "omq.client.watching"},
        "Sink": {"omq.blocking.sink", "omq.client.sink"},
        "Subscription": {"omq.blocking.receiving", "omq.client.subscription"},
    },
    "The same thing, in packages of which neither imports the other.": {
        "Gap": {"omq.bulk.access", "omq.client.errors"},
    },
    "An outcome of a delivery: the seam has those that the specification of AMQP 1.0 defines.": {
        "Accepted": {"omq.drivers.seam", "omq.protocol.amqp_1_0.performatives"},
        "Modified": {"omq.drivers.seam", "omq.protocol.amqp_1_0.performatives"},
        "Rejected": {"omq.drivers.seam", "omq.protocol.amqp_1_0.performatives"},
        "Released": {"omq.drivers.seam", "omq.protocol.amqp_1_0.performatives"},
    },
    "A type of values that both specifications of AMQP define, each with its own encoding.": {
        "Array": {"omq.protocol.amqp.fields", "omq.protocol.amqp_1_0.types"},
        "Number": {"omq.protocol.amqp.fields", "omq.protocol.amqp_1_0.types"},
        "NumberType": {"omq.protocol.amqp.fields", "omq.protocol.amqp_1_0.types"},
        "Value": {"omq.management", "omq.protocol.amqp.fields", "omq.protocol.amqp_1_0.types"},
        "Void": {"omq.management", "omq.protocol.amqp.fields"},
    },
    "The part that has this role in each protocol or terminal.": {
        "Closing": {"omq.terminals.amqp_0_9.terminal", "omq.terminals.amqp_1_0.terminal"},
        "Commands": {"omq.terminals.amqp_0_9.commands", "omq.terminals.omq.commands"},
        "Confirming": {"omq.terminals.amqp_0_9.terminal", "omq.terminals.amqp_1_0.terminal"},
        "ConnectionProblem": {"omq.protocol.amqp_0_9.problems", "omq.protocol.amqp_1_0.conditions"},
        "Event": {
            "omq.protocol.amqp_0_9.events",
            "omq.protocol.amqp_1_0.events",
            "omq.protocol.omq.client",
            "omq.protocol.omq.events",
        },
        "Frame": {"omq.protocol.amqp_1_0.performatives", "omq.protocol.omq.types"},
        "FrameType": {
            "omq.protocol.amqp_0_9.frames",
            "omq.protocol.amqp_1_0.frames",
            "omq.protocol.omq.frames",
        },
        "MessageInPieces": {
            "omq.terminals.amqp_0_9.forms",
            "omq.terminals.amqp_1_0.forms",
            "omq.terminals.connection.forms",
        },
        "OfConnection": {"omq.terminals.amqp_0_9.terminal", "omq.terminals.amqp_1_0.terminal"},
        "PublishRun": {"omq.protocol.amqp_0_9.events", "omq.protocol.omq.events"},
        "Served": {"omq.terminals.amqp_0_9.service", "omq.terminals.amqp_1_0.service"},
        "Service": {"omq.terminals.amqp_0_9.service", "omq.terminals.amqp_1_0.service"},
        "Serving": {
            "omq.terminals.amqp_0_9.terminal",
            "omq.terminals.amqp_1_0.terminal",
            "omq.terminals.omq.states",
        },
        "State": {
            "omq.terminals.amqp_0_9.terminal",
            "omq.terminals.amqp_1_0.terminal",
            "omq.terminals.omq.states",
        },
    },
    "A frame, command or type that the specification of a protocol calls so.": {
        "Blocks": {"omq.blocking.blocks", "omq.client.bulk", "omq.protocol.omq.types"},
        "Error": {"omq.protocol.amqp_1_0.performatives", "omq.protocol.omq.types"},
        "Received": {"omq.protocol.amqp_1_0.performatives", "omq.protocol.omq.types"},
        "Session": {"omq.access.session", "omq.protocol.amqp_1_0.session"},
    },
    "A type that clients use as `management.X` or `watching.X`.": {
        "Destination": {"omq.exchanges.types", "omq.management"},
        "Done": {"omq.management", "omq.protocol.omq.types"},
        "Exchange": {"omq.exchanges.types", "omq.management"},
        "Purge": {"omq.management", "omq.protocol.omq.types"},
        "Request": {"omq.management", "omq.protocol.omq.types"},
        "Server": {"omq.server", "omq.watching"},
        "Topics": {"omq.protocol.omq.types", "omq.watching"},
    },
}
"""By the reason: the names that several modules give to a class, and these modules."""


def defined() -> dict[str, set[str]]:
    """Return the modules that define a class or an alias, by its name. Leave out names that begin with an
    underscore: they are private to their module.
    """
    modules: dict[str, set[str]] = defaultdict(set)
    for package in (ROOT / "omq", ROOT / "storage" / "omq_storage"):
        for path in package.rglob("*.py"):
            module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    modules[node.name].add(module)
            for name in aliases(path):
                modules[name].add(module)
    return modules


def aliases(path: Path) -> Iterator[str]:
    """Yield the names of the type aliases of a module, which are neither constants nor type variables."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.Assign([ast.Name(name)], value) if re.fullmatch("[A-Z].*[a-z].*", name):
                if not ast.unparse(value).startswith("TypeVar("):
                    yield name
            case _:
                pass


def test_a_class_name_has_one_meaning() -> None:
    shared = {name: modules for name, modules in defined().items() if len(modules) > 1}
    assert shared == {name: modules for names in SHARED.values() for name, modules in names.items()}
