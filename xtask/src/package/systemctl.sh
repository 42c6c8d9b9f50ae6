#!/bin/bash
# In place of systemctl in a host without systemd: starts and stops what the site's units start.
set -eu
command=$1
shift
now=no
units=()
for word in "$@"; do
    case "$word" in
        --now) now=yes ;;
        -*) ;;
        *) units+=("${word%.service}") ;;
    esac
done

# The process of a unit; a daemon's own file says which.
process() {
    case "$1" in
        munge) pgrep -x munged ;;
        slurmctld) cat /run/slurm/slurmctld.pid ;;
        slurmd) cat /run/slurmd.pid ;;
        gpufrac-reaperd) pgrep -x gpufrac-reaperd ;;
    esac 2>/dev/null | head -n 1 | grep .
}

runs() {
    local pid
    pid=$(process "$1") && [ -e "/proc/$pid" ] && ! grep -q '^State:.*Z' "/proc/$pid/status"
}

wanted_by_slurmd() {
    [ -e "/etc/systemd/system/slurmd.service.$1/gpufrac-node-setup.service" ]
}

# The links that a unit asks for in its section [Install].
links() {
    sed -n 's/^WantedBy=/wants /p; s/^RequiredBy=/requires /p' "/usr/lib/systemd/system/$1.service" | while read -r kind target; do
        echo "/etc/systemd/system/$target.$kind/$1.service"
    done
}

start() {
    ! runs "$1" || return 0
    case "$1" in
        munge) runuser -u munge -- munged ;;
        slurmctld) slurmctld ;;
        slurmd)
            if wanted_by_slurmd requires; then
                gpufrac node-setup
            elif wanted_by_slurmd wants; then
                gpufrac node-setup || true
            fi
            slurmd
            ;;
        gpufrac-node-setup) gpufrac node-setup ;;
        gpufrac-reaperd) setsid gpufrac-reaperd >>/var/log/gpufrac-reaperd.log 2>&1 </dev/null & ;;
        *) echo "no unit $1 is known here" >&2; return 1 ;;
    esac
}

stop() {
    local pid
    runs "$1" || return 0
    pid=$(process "$1")
    kill "$pid"
    while runs "$1"; do sleep 0.1; done
}

case "$command" in
    daemon-reload) exit 0 ;;
    enable | disable)
        for unit in "${units[@]}"; do
            for link in $(links "$unit"); do
                if [ "$command" = enable ]; then
                    mkdir -p "$(dirname "$link")"
                    ln -sf "/usr/lib/systemd/system/$unit.service" "$link"
                else
                    rm -f "$link"
                fi
            done
            [ "$now" = yes ] || continue
            if [ "$command" = enable ]; then start "$unit"; else stop "$unit"; fi
        done
        ;;
    start) for unit in "${units[@]}"; do start "$unit"; done ;;
    stop) for unit in "${units[@]}"; do stop "$unit"; done ;;
    restart) for unit in "${units[@]}"; do stop "$unit"; start "$unit"; done ;;
    try-restart) for unit in "${units[@]}"; do ! runs "$unit" || { stop "$unit"; start "$unit"; }; done ;;
    reload) for unit in "${units[@]}"; do kill -HUP "$(process "$unit")"; done ;;
    is-enabled)
        for unit in "${units[@]}"; do
            for link in $(links "$unit"); do [ -L "$link" ] || { echo disabled; exit 1; }; done
        done
        echo enabled
        ;;
    is-active) for unit in "${units[@]}"; do runs "$unit" || { echo inactive; exit 3; }; done; echo active ;;
    *) echo "systemctl $command is not known here" >&2; exit 1 ;;
esac
