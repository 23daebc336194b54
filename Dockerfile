# docker build --tag xbench .
# docker run --rm xbench list
# docs/clusters.md has GPUs, data and where results go. For PyTorch without CUDA, a third of the size:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu --tag xbench:cpu .
FROM python:3.11-slim

ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /opt/xbench

# What xbench needs, a layer of its own that a change of the code leaves alone.
COPY constraints.txt hashes.txt setup.cfg containers/install.sh containers/requirements.py ./
RUN sh install.sh libraries "$TORCH_INDEX"

COPY . .
RUN sh containers/install.sh xbench \
 && useradd --create-home --uid 1000 xbench \
 && install --directory --owner 1000 /work

USER 1000
WORKDIR /work
ENTRYPOINT ["python", "-m", "xbench.cli"]
CMD ["--help"]
