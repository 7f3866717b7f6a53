# Haulage without the bundled PostgreSQL: give it HAULAGE_DATABASE_URL, as docker-compose.yml does.

FROM python:3.13-slim AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1 \
    UV_PYTHON=/opt/haulage/bin/python
WORKDIR /src

# The dependencies are a layer of their own: it is built again only when a pin changes.
COPY requirements/uv.txt requirements/server.txt requirements/build.in requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/uv.txt \
    && python -m venv --without-pip /opt/haulage \
    && uv pip install --require-hashes -r requirements/server.txt

COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY app app
RUN uv pip install --no-build-isolation --no-deps . \
    && uv pip uninstall -r requirements/build.in


FROM python:3.13-slim
# tini is process 1: it reaps what jobs leave behind. Certificates are for LLM services.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin haulage
COPY --from=builder /opt/haulage /opt/haulage

# A container's own loopback is reached by nobody, so it listens on every address. Without API
# keys Haulage refuses that until HAULAGE_ALLOW_UNAUTHENTICATED=true is set as well. Set it only
# where the port is published on loopback, or behind a proxy that authenticates.
ENV PATH=/opt/haulage/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HAULAGE_HOST=0.0.0.0 \
    HAULAGE_PORT=8000 \
    HAULAGE_LOG_FORMAT=json
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
# For `serve` and `api`; a container that runs `worker` serves no HTTP and needs no such check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['HAULAGE_PORT'] + '/livez', timeout=3)"]
ENTRYPOINT ["tini", "--", "haulage"]
CMD ["serve"]
