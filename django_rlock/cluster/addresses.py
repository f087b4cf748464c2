"""The addresses of a cluster's nodes, from the settings and from what the nodes announce."""

from __future__ import annotations

import ipaddress
import re

from django.core.exceptions import ImproperlyConfigured

from django_rlock.redaction import shown

Address = tuple[str, int]

_ADDRESS = re.compile(r"(\[(?P<ipv6>[^\s/?@\[\]]+)\]|(?P<host>[^\s:/?@\[\]]+)):(?P<port>\d{1,5})")
_EXAMPLES = {
    "NODE_ADDRESSES": """a dict like {"10.0.0.1:6379": "203.0.113.5:7001"}""",
    "STARTUP_NODES": """a list like ["10.0.0.2:6379"]""",
}


class NodeAddresses:
    """NODE_ADDRESSES: how to reach nodes that announce addresses of another network, like Redisson's ``natMapper``."""

    def __init__(self, option: object) -> None:
        if not isinstance(option, dict):
            raise _refused("NODE_ADDRESSES", option)
        pairs = {_address("NODE_ADDRESSES", named): _address("NODE_ADDRESSES", option[named]) for named in option}
        self._reached = {(_canonical(host), port): address for (host, port), address in pairs.items()}

    def reached(self, host: bytes | str | None, port: int, asked: Address) -> Address:
        """The address that reaches, from here, a node that ``asked`` announces as this host and port."""
        name = host.decode() if isinstance(host, bytes) else host
        if not name or name == "?":  # it means the host under which it was reached itself
            name = asked[0]
        return self._reached.get((_canonical(name), port), (name, port))


def _canonical(host: str) -> str:
    """A host in a canonical form for comparison; IPv6 addresses have many forms."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def startup_nodes(option: object) -> list[Address]:
    if not isinstance(option, list | tuple):
        raise _refused("STARTUP_NODES", option)
    return [_address("STARTUP_NODES", node) for node in option]


def _address(setting: str, value: object) -> Address:
    match value:
        case str(host), int(port):
            text = written((host, port))
        case _:
            text = str(value)
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise _refused(setting, value)
    return found["ipv6"] or found["host"], int(found["port"])


def _refused(setting: str, value: object) -> ImproperlyConfigured:
    told = re.sub(".*@", "***@", shown(value))  # a URL may lack its scheme here
    return ImproperlyConfigured(
        f"{setting}, in the OPTIONS of a Redis Cluster in CACHES, must be {_EXAMPLES[setting]}, "
        f'whose addresses may also be written ("10.0.0.1", 6379) or "[2001:db8::1]:6379"; not {told}.'
    )


def written(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
