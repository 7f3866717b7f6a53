"""Which addresses webhooks may go to: those of the public internet, and those that are allowed.

An endpoint is a URL that somebody typed and a name that somebody else's server resolves: without a
guard it reaches whatever this machine reaches, the metadata service of a cloud as well as its own
database. So every name is resolved here, each address is looked at, and the connection goes to that
address and to no other.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from app.domain.errors import HaulageError
from app.domain.webhooks import MAX_URL_CHARACTERS

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Of the public internet is what no registry of special purposes names (IANA, RFC 6890 and later).
# Written out: Python's `is_global` differs from version to version and lets multicast pass.
_SPECIAL: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        # Inside of what is given out for IPv6: tunnels and documentation.
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
    )
)
_IPV6_INTERNET: Final = ipaddress.IPv6Network("2000::/3")
# IPv4 behind a translator (NAT64): as good as the address inside.
_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")


class BlockedAddressError(HaulageError):
    """A webhook's host has no address that may be asked; says the host's name only."""

    def __init__(self, host: str) -> None:
        super().__init__(f"{host[:255]} is no public address; see HAULAGE_WEBHOOK_ALLOW")
        self.host = host


@dataclass(frozen=True, slots=True)
class AddressRules:
    """What is allowed beside public addresses.

    Attributes:
        hosts: names, in lower case, that may have any address.
        networks: of addresses that any name may have.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """From names, addresses and networks such as 10.1.0.0/16; ValueError."""
        hosts: set[str] = set()
        networks: list[Network] = []
        for entry in entries:
            text = entry.strip("[]").lower()
            if text.replace(".", "").replace("/", "").isdecimal() or ":" in text:
                networks.append(ipaddress.ip_network(text))
            elif "/" in text or "*" in text or not text:
                raise ValueError(f"{entry!r} is no host name, address or network")
            else:
                hosts.add(text.removesuffix("."))
        return cls(frozenset(hosts), tuple(networks))

    def choose(self, host: str, addresses: Iterable[str]) -> str:
        """The first address that may be asked for this host; BlockedAddressError."""
        is_allowed_host = _plain(host) in self.hosts
        for text in addresses:
            address = ipaddress.ip_address(text.partition("%")[0])
            if is_allowed_host or self.allows(address):
                return str(address)
        raise BlockedAddressError(host)

    def allows(self, address: Address) -> bool:
        """Whether this address may be asked, under whatever name."""
        if any(address in network for network in self.networks):
            return True
        inside = _inside(address)
        return self.allows(inside) if inside is not None else _is_public(address)

    def check_url(self, url: str) -> str:
        """The URL if it can be an endpoint at all; where its host is an address that is checked.

        Raises:
            ValueError: what is wrong with it.
        """
        if len(url) > MAX_URL_CHARACTERS or not url.isascii() or not url.isprintable():
            raise ValueError(f"at most {MAX_URL_CHARACTERS} printable ASCII characters")
        if " " in url or "\\" in url or "#" in url or "@" in url:
            raise ValueError("no spaces, backslashes, fragments or user names")
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
            raise ValueError("write it as https://host/path")
        try:
            address = ipaddress.ip_address(parts.hostname)
        except ValueError:
            return url  # a name: what it means is looked up at every delivery
        if _plain(parts.hostname) not in self.hosts and not self.allows(address):
            raise ValueError("no public address; see HAULAGE_WEBHOOK_ALLOW")
        return url


def _plain(host: str) -> str:
    return host.lower().removesuffix(".")


def _inside(address: Address) -> Address | None:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _IPV6_INTERNET:
        return False
    return not any(address in network for network in _SPECIAL)
