"""Links between pages of a list (RFC 8288)."""

from typing import Final
from urllib.parse import quote, urlencode

from fastapi import Request, Response

NEXT_PAGE: Final = 'The next page: `<...>; rel="next"`.'
"""What the header `Link` is in the description of a list."""


def next_page(http: Request, **position: object) -> str:
    """Path and query of the page behind this one, with the other parameters as they were given."""
    query = {**http.query_params, **position}
    return f"{quote(http.url.path)}?{urlencode(query)}"


def link_to_next(response: Response, url: str | None) -> None:
    """Name the next page in the header `Link`, where there is one."""
    if url is not None:
        response.headers["Link"] = f'<{url}>; rel="next"'
