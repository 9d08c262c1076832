# The command and the package, from the wheel that scripts/release makes:
#   scripts/release --no-proof && docker build -t spillway .
#   docker run --rm -v "$PWD:/work" -w /work spillway estimate config.json
# scripts/release does the same steps in a bare root of Debian.
FROM debian:bookworm-slim
RUN apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv
RUN python3 -m venv /opt/spillway
COPY dist/*.whl /tmp/
RUN /opt/spillway/bin/pip install --no-cache-dir /tmp/*.whl
RUN ln -s /opt/spillway/bin/spillway /usr/local/bin/spillway
ENTRYPOINT ["spillway"]
CMD ["--help"]
