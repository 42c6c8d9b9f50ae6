"""JupyterHub with batchspawner: each server is a job on a part of a GPU. README.md beside this file has the rest."""

import asyncio
import html
import json
import subprocess
import time

# The hub needs the module even where another spawner is chosen: it is the page on which a job tells its port.
import batchspawner

# The sizes on offer, of those that a partition gives.
SIZES = ("0.125", "0.25", "0.5", "1")
# For how many seconds a form shows the same room: each question is work for slurmctld.
KEEP = 20


def ask(*words):
    """The answer of gpufrac; an empty one where it fails."""
    try:
        answer = subprocess.run(["gpufrac", *words, "--json"], stdout=subprocess.PIPE, timeout=20, check=True)
        return json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def offer():
    """The text that a user reads for each pair of a partition and a size."""
    rows = ask("status", "--cluster").get("free", [])
    room = {(row["partition"], row["fraction"]): row["jobs"] for row in rows}
    texts = {}
    for partition in ask("conf").get("partitions", []):
        name = partition["name"]
        for size in partition["sizes"]:
            fraction = size["fraction"]
            if fraction in SIZES:
                text = f"{name}: {fraction} of a GPU, {size['memory_mib'] // 1024} GiB"
                if (name, fraction) in room:
                    text += f", {room[name, fraction]} free now"
                texts[f"{name}/{size['gres']}"] = text
    return texts


last = {"at": 0, "texts": {}}


async def offered():
    """The same, not older than KEEP."""
    if not last["texts"] or time.monotonic() - last["at"] > KEEP:
        last.update(at=time.monotonic(), texts=await asyncio.to_thread(offer))
    return last["texts"]


async def options_form(spawner):
    texts = await offered()
    rows = ((html.escape(choice), html.escape(text)) for choice, text in texts.items())
    options = "".join(f'<option value="{choice}">{text}</option>' for choice, text in rows)
    return f'<label for="gpu">GPU</label><select class="form-control" name="gpu" id="gpu" required>{options}</select>'


async def options_from_form(form):
    """Only what the form offers goes into the job's script."""
    (choice,) = form["gpu"]
    if choice not in await offered():
        raise ValueError(f"{choice} is not offered; choose again")
    partition, gres = choice.split("/")
    return {"partition": partition, "gres": gres}


c = get_config()  # noqa: F821
c.JupyterHub.spawner_class = batchspawner.SlurmSpawner
c.Spawner.options_form = options_form
c.Spawner.options_from_form = options_from_form
c.SlurmSpawner.req_runtime = "2:00:00"
