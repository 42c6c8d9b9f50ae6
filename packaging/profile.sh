# The variables of a job's slice in a login shell that pam_slurm_adopt put into the job.
if [ -z "${GPUFRAC_MECHANISM-}" ] && [ -r /proc/self/cgroup ]; then
    while read -r gpufrac_group; do
        case $gpufrac_group in
            */step_extern*)
                eval "$(gpufrac env 2>/dev/null)"
                break
                ;;
        esac
    done </proc/self/cgroup
    unset gpufrac_group
fi
