"""Adds up usage records and rows of sacct, without gpufrac's code: what `gpufrac report` is compared with.

Usage: sum.py GPUFRAC_TOML SACCT FILE... ; SACCT is a file with the rows of
`sacct -X -D -a -P -n -o User,Account,QOS,Partition,ElapsedRaw,AllocTRES`, or `-`. Prints JSON; times are in seconds of
a unit, a hundredth of a GPU, and money is an exact fraction of the currency. docs/admin/report.md says what is added up.
"""

import collections
import fractions
import json
import sys
import tomllib

WHATS = ["user", "account", "partition", "pool", "node", "size"]


def records(paths):
    """Each slice of each run once, whichever file it is in."""
    seen = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if "kind" in record:
                    continue
                key = (record["node"], record["job"], record.get("slice", 0), record["restart_count"], record["start"])
                seen.setdefault(key, record)
    return list(seen.values())


def price(report, pool, allocated, idle):
    def rate(name):
        own = report.get("pool", {}).get(pool, {})
        return fractions.Fraction(str(own.get(name, report.get(name, 0))))

    hour = 100 * 3600
    return (rate("gpu_hour") * allocated + rate("idle_hour") * idle) / hour


def sums_of_records(report, paths):
    rows = {what: collections.defaultdict(lambda: collections.defaultdict(int)) for what in WHATS}
    for record in records(paths):
        if record["seconds"] == 0:
            continue
        units, used = record["units"], record.get("used")
        parts = {part: used[part] * units for part in ("busy", "idle", "unknown", "suspended")} if used else {
            "busy": 0, "idle": 0, "unknown": record["seconds"] * units, "suspended": 0}
        allocated = sum(parts.values())
        cost = price(report, record["pool"], allocated, parts["idle"])
        of = {"user": record["user"], "account": record["account"] or "-", "partition": record["partition"],
              "pool": record["pool"], "node": record["node"], "size": record["fraction"]}
        for what in WHATS:
            row = rows[what][of[what]]
            row["slices"] += 1
            row["allocated"] += allocated
            row["cost"] += cost
            for part, time in parts.items():
                row[part] += time
    return {what: {key: {name: str(value) for name, value in row.items()} for key, row in table.items()}
            for what, table in rows.items()}


def sums_of_sacct(path):
    rows = {what: collections.Counter() for what in ["user", "account", "qos", "partition"]}
    with open(path, encoding="utf-8") as file:
        for line in file:
            *of, elapsed, tres = line.rstrip("\n").split("|")
            units = sum(int(item.split("=")[1]) for item in tres.split(",") if item.startswith("gres/gpufrac="))
            for what, key in zip(rows, of):
                if units * int(elapsed):
                    rows[what][key] += units * int(elapsed)
    return rows


def main():
    toml, sacct, *paths = sys.argv[1:]
    with open(toml, "rb") as file:
        report = tomllib.load(file, parse_float=str).get("report", {})
    sums = {"records": sums_of_records(report, paths), "count": len(records(paths))}
    if sacct != "-":
        sums["sacct"] = sums_of_sacct(sacct)
    json.dump(sums, sys.stdout, indent=1)


main()
