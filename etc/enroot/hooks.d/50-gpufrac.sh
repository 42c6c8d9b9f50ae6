#!/bin/sh
# For /etc/enroot/hooks.d on each node, executable: gives a container the variables of the job's slice, and the folders
# of MPS and HAMi-core that they name. A container whose folder cannot be mounted does not start: without it a program
# would compute without a limit. enroot brings the devices of NVIDIA_VISIBLE_DEVICES itself (98-nvidia.sh), and the
# library of HAMi-core needs a line in mounts.d.
set -eu

[ -n "${GPUFRAC_MECHANISM-}" ] || exit 0

# enroot takes the last value of a variable, so an image chooses none of these.
names='CUDA_VISIBLE_DEVICES|CUDA_MPS_[A-Z_]*|CUDA_DEVICE_[A-Z_]*|NVIDIA_VISIBLE_DEVICES|GPUFRAC_[A-Z_]*'
names="$names|XLA_PYTHON_CLIENT_MEM_FRACTION|TF_FORCE_GPU_ALLOW_GROWTH|CUPY_GPU_MEMORY_LIMIT"
if [ "$GPUFRAC_MECHANISM" = hami ]; then
    names="$names|LD_PRELOAD"
fi
env | grep -E "^($names)=" >>"$ENROOT_ENVIRON"

cache=${CUDA_DEVICE_MEMORY_SHARED_CACHE-}
for folder in "${CUDA_MPS_PIPE_DIRECTORY-}" "${CUDA_MPS_LOG_DIRECTORY-}" "${cache%/*}"; do
    [ -z "$folder" ] ||
        echo "$folder $folder none x-create=dir,rbind,rw,nosuid,nodev,noexec" >>"$ENROOT_MOUNTS"
done
