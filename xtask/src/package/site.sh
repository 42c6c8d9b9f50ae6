#!/bin/bash
# In a host: the cluster of a site as it is before gpufrac. site.sh KEY
set -eu
useradd --uid 5001 --create-home --shell /bin/bash alice
printf '127.0.0.1 localhost\n10.9.0.1 ctl\n10.9.0.2 gn01\n10.9.0.3 login\n10.9.0.4 gn02\n' >/etc/hosts
install -d -o munge -g munge -m 700 /etc/munge /var/lib/munge /var/log/munge
install -d -o munge -g munge -m 755 /run/munge
install -o munge -g munge -m 400 "$1" /etc/munge/munge.key
install -d -o slurm -g slurm -m 755 /run/slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm
mkdir -p /var/lib/slurm/slurmd /etc/slurm
cat >/etc/slurm/slurm.conf <<'END'
ClusterName=site
SlurmctldHost=ctl
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=gn01 CPUs=8 Gres=gpu:h100:2
PartitionName=cpu Nodes=gn01 Default=YES MaxTime=INFINITE
PartitionName=gpu Nodes=gn01 MaxTime=INFINITE
END
echo 'NodeName=gn01 Name=gpu Type=h100 File=/dev/nvidia[0-1]' >/etc/slurm/gres.conf
printf 'CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n' >/etc/slurm/cgroup.conf
systemctl start munge
case "$(hostname)" in
    ctl) systemctl start slurmctld ;;
    gn01) systemctl start slurmd ;;
esac
