#!/bin/bash
# A host of the site, as root: host.sh NAME BASE FOLDER NETWORK GPUSIM LIBRARY
# BASE is a Debian with Slurm, which stays as it is; FOLDER takes what changes. It has its own processes, devices, control groups,
# network and name; NETWORK is the process of the host whose network has the switch, or `new`. With GPUSIM it has GPUs.
set -eu
name=$1 base=$2 folder=$3 network=$4 gpusim=$5 library=$6
if [ "${7:-}" != inside ]; then
    # Its own group in each hierarchy, which it takes for the whole of it.
    for hierarchy in /sys/fs/cgroup/*/; do
        [ -e "$hierarchy/cgroup.procs" ] || continue
        group=$hierarchy/gpufrac-$name-$$
        mkdir "$group"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$group/$file" ] || cat "$hierarchy/$file" >"$group/$file"
        done
        echo $$ >"$group/cgroup.procs"
        echo "$group" >>"$folder/groups"
    done
    exec unshare --mount --uts --ipc --pid --cgroup --net --fork --kill-child --propagation private \
        bash "$0" "$name" "$base" "$folder" "$network" "$gpusim" "$library" inside
fi

root=$folder/root
mkdir -p "$folder/upper" "$folder/work" "$root"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$folder/upper,workdir=$folder/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
for hierarchy in cpu cpuacct cpuset memory devices freezer pids; do
    mkdir "$root/sys/fs/cgroup/$hierarchy"
    mount -t cgroup -o "$hierarchy" cgroup "$root/sys/fs/cgroup/$hierarchy"
done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
if [ "$gpusim" = - ]; then
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
else
    # The driver's files are where a driver has them.
    "$gpusim" --root "$root/opt/gpusim" init --gpu H100-80:2 --lib "$library" >/dev/null
    mount --bind "$root/opt/gpusim/dev" "$root/dev"
    mount --bind "$root/opt/gpusim/proc/driver" "$root/proc/driver"
    [ ! -e "$root/opt/gpusim/proc/devices" ] || mount --bind "$root/opt/gpusim/proc/devices" "$root/proc/devices"
    echo /opt/gpusim/lib >"$root/etc/ld.so.conf.d/gpusim.conf"
    chroot "$root" ldconfig
fi
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
    mknod -m 666 "$root/dev/${node%%:*}" c $(echo "${node#*:}" | tr : ' ')
done
mkdir -p "$root/dev/shm" "$root/dev/pts" "$root/run/munge" "$root/run/slurm" "$root/root/packages"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount --bind "$folder/packages" "$root/root/packages"
hostname "$name"
ip link set lo up
switch="ip"
if [ "$network" = new ]; then
    ip link add switch0 type bridge
    ip link set switch0 up
    ip link add net0 type veth peer name "to-$name"
else
    switch="nsenter --net=/proc/$network/ns/net ip"
    ip link add net0 type veth peer name "to-$name" netns "/proc/$network/ns/net"
fi
$switch link set "to-$name" master switch0
$switch link set "to-$name" up
case "$name" in ctl) number=1 ;; gn01) number=2 ;; login) number=3 ;; gn02) number=4 ;; esac
ip address add "10.9.0.$number/24" dev net0
ip link set net0 up
touch "$folder/ready"
# The first process takes what daemons leave.
exec chroot "$root" /bin/bash -c 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
