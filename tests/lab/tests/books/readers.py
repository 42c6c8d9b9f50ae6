"""Prints what job_defense_shield makes of the summaries of jobs: JSON of job id to GPU efficiency and GPU memory,
each with the error code of job_defense_shield.

Usage: readers.py FILE ; FILE has rows of `sacct -X -P -n -o JobID,ElapsedRaw,AdminComment`.
"""

import json
import sys

from job_defense_shield.efficiency import get_stats_dict, gpu_efficiency, gpu_memory_usage_eff_tuples

read = {}
with open(sys.argv[1], encoding="utf-8") as rows:
    for row in rows:
        job, elapsed, comment = row.rstrip("\n").split("|", 2)
        if not comment.startswith("JS1:H4s"):
            continue
        summary = get_stats_dict(comment)
        read[job] = {
            "gpu": gpu_efficiency(summary, int(elapsed), job, "lab", single=True, verbose=False),
            "memory": gpu_memory_usage_eff_tuples(summary, job, "lab", verbose=False),
        }
json.dump(read, sys.stdout)
