"""The address of a MongoDB database, read without its driver; it must never connect anywhere."""

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import SplitResult, unquote, urlsplit

from app.domain.errors import ConfigurationError

_SCHEMES: Final = ("mongodb", "mongodb+srv")
# As far as the last @ before the options: who forgot to write one as %40 must not see the rest.
_PASSWORD: Final = re.compile(r"(?<=://)([^:/?@]*):[^?]*@")
_SECRET_OPTION: Final = re.compile(r"(?i)((?:\w*password|authmechanismproperties)=)[^&]*")
# What may not stand before the last @ as it is.
_UNESCAPED: Final = re.compile(r"@|%(?![0-9A-Fa-f]{2})")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s\[\]:]+)(:(?P<port>[0-9]{1,9}))?")
_MAX_PORT: Final = 65_535
_NO_NAME: Final = re.compile(r'[/\\. "$*<>:|?]')
_MAX_NAME_BYTES: Final = 63
# Databases of its own, in which there are no transactions.
_OF_THE_SERVER: Final = ("admin", "config", "local")
_UNREADABLE: Final = "not a URL: write special characters of a password as %XX, such as # as %23"


def _remedy(parts: SplitResult) -> str | None:
    """What is to be done about a URL that the driver would not take."""
    user, mark, hosts = parts.netloc.rpartition("@")
    if mark and (not user or _UNESCAPED.search(user) or user.count(":") > 1):
        return _UNREADABLE
    ports = [match["port"] for host in hosts.split(",") if (match := _HOST.fullmatch(host))]
    if len(ports) != hosts.count(",") + 1:
        return "name each host as HOST or HOST:PORT, with commas between them"
    if any(port is not None and not 0 < int(port) <= _MAX_PORT for port in ports):
        return f"a port is a number from 1 to {_MAX_PORT}"
    if parts.scheme == "mongodb+srv" and ports != [None]:
        return "mongodb+srv:// takes one name without a port; the DNS knows the rest"
    name = unquote(parts.path[1:])
    if name in _OF_THE_SERVER:
        return "name a database for jobs; where the users are is said by ?authSource=admin"
    if _NO_NAME.search(name) or len(name.encode()) > _MAX_NAME_BYTES:
        return f'not the name of a database: {_MAX_NAME_BYTES} bytes at most, no /\\. "$*<>:|?'
    return None


@dataclass(frozen=True, slots=True, repr=False)
class MongoURL:
    """The address of one MongoDB database; printing it never shows a password.

    Attributes:
        text: the URL for the driver; the database is "haulage" where it names none.
    """

    text: str

    @classmethod
    def matches(cls, text: str) -> bool:
        """Whether the URL is one of MongoDB's at all."""
        return text.strip().partition("://")[0].lower() in _SCHEMES

    @classmethod
    def parse(cls, text: str, *, setting: str = "HAULAGE_DATABASE_URL") -> Self:
        """Read a URL that begins with mongodb:// or mongodb+srv://.

        Raises:
            ConfigurationError: naming `setting` and the remedy; of the value only the scheme.
        """
        url = text.strip()
        shown = f"{url.partition('://')[0]}://***"
        if not cls.matches(url):
            raise ConfigurationError(setting, shown, "not a MongoDB URL: begin with mongodb://")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigurationError(setting, shown, _UNREADABLE) from None
        if parts.fragment or not parts.netloc.rpartition("@")[2]:
            raise ConfigurationError(setting, shown, _UNREADABLE)
        if remedy := _remedy(parts):
            raise ConfigurationError(setting, shown, remedy)
        # The driver wants the scheme in small letters.
        return cls(f"{parts.scheme}{url[len(parts.scheme) :]}")

    @property
    def masked(self) -> str:
        """The URL with *** for each secret, for messages and logs."""
        return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", self.text))

    @property
    def without_driver(self) -> ConfigurationError:
        """What to say where the driver, an extra of ours, is not installed."""
        remedy = "pip install 'haulage[mongo]' first"
        return ConfigurationError("HAULAGE_DATABASE_URL", self.masked, remedy)

    def __repr__(self) -> str:
        return f"MongoURL({self.masked!r})"

    def __str__(self) -> str:
        return self.masked
