# The daemon alone, without Spark. Put your record processor on top:
#
#   FROM kcl-daemon:0.1.0
#   COPY app.properties consumer.py /app/
#   CMD ["--properties", "/app/app.properties"]
#
# Process 1 is dumb-init: it passes signals on to the daemon and reaps what record processors leave behind. SIGTERM stops
# the daemon gracefully: give the container a stop time-out that is longer than shutdownGraceMillis and twice
# childExitGraceMillis together (docker stop --timeout 45, terminationGracePeriodSeconds: 45).
#
# HEALTHCHECK asks the daemon where KCL_ADMIN_PORT is set; else it tells only that the container runs.

FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY daemon daemon
COPY protocol protocol
COPY clients clients
RUN python -m venv --without-pip /opt/kcl-daemon \
    && python -m pip --python /opt/kcl-daemon/bin/python install --no-cache-dir . dumb-init==1.2.5.post1

FROM python:3.13-slim
COPY --from=build /opt/kcl-daemon /opt/kcl-daemon
RUN useradd --uid 10001 --user-group --no-log-init --no-create-home --shell /usr/sbin/nologin kcl
ENV PATH=/opt/kcl-daemon/bin:$PATH \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-m", "kcl_daemon.admin.probe"]
ENTRYPOINT ["dumb-init", "--single-child", "--", "kcl-daemon"]
CMD ["--help"]
