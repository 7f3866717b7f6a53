"""One reading of database URLs for every driver that Haulage uses.

asyncpg and SQLAlchemy disagree: asyncpg wants `sslmode` and no `+asyncpg`; SQLAlchemy wants `ssl`,
lists several hosts as options, and takes certificates and server settings only beside the URL.
This module owns the difference and must never connect anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from app.domain.errors import ConfigurationError

_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_DEFAULT_PORT = 5432
_UNREADABLE = "not a URL: write special characters of a password as %XX, for example # as %23"
# libpq keeps these to itself; asyncpg would send them to the server, which refuses them.
_LIBPQ_ONLY = frozenset(
    {
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance_hosts",
        "require_auth",
        "tcp_user_timeout",
    }
)


@dataclass(frozen=True, slots=True, repr=False)
class DatabaseURL:
    """The address of one PostgreSQL database; printing it never shows a password.

    Attributes:
        hosts: pairs of host (name, address or socket folder) and port, in the order to try them;
            empty where the URL names none and the driver's default applies.
        user: None where the URL names none, like `password` and `database`. Without a database
            both drivers take the one named like the user.
        ssl_mode: libpq's word, None where the URL has none.
        options: what else the URL asks for: certificates, `application_name`, server settings.
    """

    hosts: tuple[tuple[str, int], ...]
    user: str | None
    password: str | None
    database: str | None
    ssl_mode: str | None
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, *, setting: str = "HAULAGE_DATABASE_URL") -> Self:
        """Read a URL that begins with postgresql://, postgres:// or postgresql+asyncpg://.

        Raises:
            ConfigurationError: naming `setting` and the remedy; of the value only the scheme.
        """
        scheme, mark, _ = text.strip().partition("://")
        shown = f"{scheme}://***" if mark else "***"
        if not mark or scheme.lower() not in _SCHEMES:
            remedy = f"not a PostgreSQL URL: begin with {', '.join(f'{s}://' for s in _SCHEMES)}"
            raise ConfigurationError(setting, shown, remedy)
        try:
            return cls._parse(text.strip())
        except ValueError as error:
            raise ConfigurationError(setting, shown, str(error)) from None

    @classmethod
    def _parse(cls, text: str) -> Self:
        try:
            parts = urlsplit(text)
        except ValueError:  # a bracket outside an IPv6 address
            raise ValueError(_UNREADABLE) from None
        if parts.fragment:
            raise ValueError(_UNREADABLE)
        options: dict[str, str] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            # SQLAlchemy's form repeats `host`, once for each.
            repeated = name == "host" and name in options
            options[name] = f"{options[name]},{value}" if repeated else value
        if unknown := sorted(_LIBPQ_ONLY & options.keys()):
            raise ValueError(f"take out {', '.join(unknown)}: the driver has no such option")

        auth, _, hostspec = parts.netloc.rpartition("@")
        user, _, password = (unquote(part) for part in auth.partition(":"))
        hostspec = hostspec or options.pop("host", "")
        database = unquote(parts.path.removeprefix("/"))
        ssl_mode = options.pop("sslmode", None) or options.pop("ssl", None)
        options.pop("ssl", None)
        if ssl_mode and ssl_mode not in _SSL_MODES:
            raise ValueError(f"sslmode must be one of {', '.join(_SSL_MODES)}")
        return cls(
            hosts=_hosts(hostspec, options.pop("port", "")) if hostspec else (),
            user=user or options.pop("user", None),
            password=password or options.pop("password", None),
            database=database or options.pop("dbname", None) or options.pop("database", None),
            ssl_mode=ssl_mode,
            options=options,
        )

    def __repr__(self) -> str:
        return f"DatabaseURL({self.masked!r})"

    def __str__(self) -> str:
        return self.masked

    @property
    def asyncpg_dsn(self) -> str:
        """The whole address for asyncpg; libpq's programs read it too."""
        return self._render(self.password, self.options)

    @property
    def masked(self) -> str:
        """`asyncpg_dsn` with *** for each password, for messages and logs."""
        options = {k: "***" if "password" in k else v for k, v in self.options.items()}
        return self._render("***" if self.password else None, options)

    @property
    def sqlalchemy_url(self) -> str:
        """Where to connect, for `create_async_engine`; `options` travel in `connect_args`."""
        query = {"ssl": self.ssl_mode} if self.ssl_mode else {}
        netloc = self._auth(self.password)
        if len(self.hosts) == 1 and not self.hosts[0][0].startswith("/"):
            netloc += _netloc(*self.hosts[0])
        elif self.hosts:
            query["host"] = ",".join(host for host, _ in self.hosts)
            query["port"] = ",".join(str(port) for _, port in self.hosts)
        return f"postgresql+asyncpg://{netloc}{self._path}{_query(query)}"

    @property
    def connect_args(self) -> dict[str, str]:
        """The other half of `sqlalchemy_url`, for `create_async_engine(connect_args=...)`."""
        # asyncpg reads certificates from nothing but a DSN; what the URL says takes precedence.
        return {"dsn": f"postgresql://{_query(self.options)}"} if self.options else {}

    def _render(self, password: str | None, options: Mapping[str, str]) -> str:
        ssl = {"sslmode": self.ssl_mode} if self.ssl_mode else {}
        hosts = ",".join(_netloc(*host) for host in self.hosts)
        return f"postgresql://{self._auth(password)}{hosts}{self._path}{_query({**ssl, **options})}"

    def _auth(self, password: str | None) -> str:
        secret = f":{quote(password, safe='*')}" if password else ""
        return f"{quote(self.user or '', safe='')}{secret}@" if self.user or secret else ""

    @property
    def _path(self) -> str:
        # asyncpg takes a lone slash for a database without a name.
        return f"/{quote(self.database, safe='')}" if self.database else ""


def _hosts(hostspec: str, port_option: str) -> tuple[tuple[str, int], ...]:
    specs = hostspec.split(",")
    ports = port_option.split(",") if port_option else [str(_DEFAULT_PORT)]
    if len(ports) == 1:
        ports *= len(specs)
    if len(ports) != len(specs):
        raise ValueError("give one port, or one for each host")
    return tuple(_host(spec, port) for spec, port in zip(specs, ports, strict=True))


def _host(spec: str, default_port: str) -> tuple[str, int]:
    if spec.startswith("["):
        host, _, port = spec[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = spec.partition(":")
    if not host or not (port or default_port).isdecimal():
        raise ValueError(_UNREADABLE)
    return unquote(host), int(port or default_port)


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{quote(host, safe='')}:{port}"


def _query(options: Mapping[str, str]) -> str:
    return f"?{urlencode(options, quote_via=quote, safe='/,*')}" if options else ""
