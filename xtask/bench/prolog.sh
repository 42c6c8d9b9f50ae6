#!/bin/bash
# What a site writes by hand: a 2g instance with nvidia-smi, and its UUID for the job.
# Writes the id of the GPU instance to the file $1.
set -eu
made=$(nvidia-smi mig -i 0 -cgi 14 -C)
id=$(sed -n 's/.*created GPU instance ID *\([0-9]*\) .*/\1/p' <<<"$made" | head -n 1)
[ -n "$id" ]
echo "$id" >"$1"
nvidia-smi -L | grep -o 'MIG-[0-9a-f-]*' >"$1.uuid"
