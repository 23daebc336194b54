# docker build --tag xbench . && docker run --gpus all --shm-size 8g --volume /data:/data xbench list
FROM python:3.11-slim
WORKDIR /xbench
COPY . .
RUN python -m pip install --no-cache-dir --upgrade pip --constraint constraints.txt \
 && python -m pip install --no-cache-dir --constraint constraints.txt --build-constraint constraints.txt .
WORKDIR /work
ENTRYPOINT ["xbench"]
