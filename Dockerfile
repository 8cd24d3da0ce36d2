# The daemon alone. Put your record processor on top:
#
#   FROM kcl-daemon:0.1.0
#   COPY app.properties consumer.py /app/
#   CMD ["--properties", "/app/app.properties"]
#
# The daemon may be process 1. SIGTERM stops it gracefully: give the container a stop time-out that is longer than
# shutdownGraceMillis (docker stop --timeout 30, terminationGracePeriodSeconds: 30). Programs that leave processes of
# their own behind want `docker run --init`.

FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY daemon daemon
COPY protocol protocol
COPY clients clients
RUN python -m venv /opt/kcl-daemon \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && /opt/kcl-daemon/bin/pip install --no-cache-dir /wheels/*.whl

FROM python:3.13-slim
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin kcl
COPY --from=build /opt/kcl-daemon /opt/kcl-daemon
ENV PATH=/opt/kcl-daemon/bin:$PATH \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["kcl-daemon"]
CMD ["--help"]
