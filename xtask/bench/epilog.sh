#!/bin/bash
# And its end: compute instances, then the GPU instance whose id is in the file $1.
set -eu
id=$(cat "$1")
nvidia-smi mig -i 0 -gi "$id" -dci >/dev/null
nvidia-smi mig -i 0 -gi "$id" -dgi >/dev/null
