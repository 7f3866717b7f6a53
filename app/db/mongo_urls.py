"""The address of a MongoDB database, read without its driver; it must never connect anywhere."""

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from app.domain.errors import ConfigurationError

_SCHEMES: Final = ("mongodb", "mongodb+srv")
# As far as the last @ before the options: who forgot to write one as %40 must not see the rest.
_PASSWORD: Final = re.compile(r"(?<=://)([^:/?@]*):[^?]*@")
_SECRET_OPTION: Final = re.compile(r"(?i)((?:\w*password|authmechanismproperties)=)[^&]*")
_UNREADABLE: Final = "not a URL: write special characters of a password as %XX, such as # as %23"


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
        return cls(url)

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
