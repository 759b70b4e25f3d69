# Headstart with the recipes of the repository: docker build -t headstart .
# The wheels of torch bring the CUDA libraries; a machine with GPUs needs only the driver and NVIDIA's container toolkit.
# For a smaller image without CUDA: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
FROM python:3.12-slim
ARG TORCH_INDEX=
ARG EXTRAS=corpus,search,stores,study
RUN useradd --create-home headstart
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY recipes recipes
COPY studies studies
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url $TORCH_INDEX} torch \
    && pip install --no-cache-dir ".[${EXTRAS}]"
USER headstart
WORKDIR /workspace
CMD ["headstart", "doctor"]
