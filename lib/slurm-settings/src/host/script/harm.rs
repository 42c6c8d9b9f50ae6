//! Commands of a site's scripts that harm other jobs on a shared GPU, or credit them with its activity. They are right
//! where each job has whole GPUs.

use std::collections::BTreeSet;

use super::steps::{After, Step, is_flag, steps};
use super::{bare, interpreter, is_shell};

/// What a script does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// It ends all processes on a GPU.
    EndsAll,
    /// It writes jobs into [`GPUSTAT`] by Slurm's numbers of GPUs.
    Credits,
}

/// The folder in which jobstats' GPU exporter looks for the job of a GPU.
const GPUSTAT: &str = "/run/gpustat";
/// A script that names the leases takes its GPUs from them.
const LEASES: &str = "gpufrac/leases";
/// Commands that change files which their arguments name.
const WRITERS: [&str; 6] = ["rm", "tee", "cp", "mv", "ln", "install"];
/// Commands that only print their arguments.
const PRINTERS: [&str; 3] = ["echo", "printf", "logger"];
/// Commands that read their input into variables.
const READERS: [&str; 3] = ["read", "mapfile", "readarray"];

/// The harm that a script does, each kind with its first line.
pub fn harms(text: &str) -> Vec<(usize, Harm)> {
    let steps = steps(text);
    let credits = credits(text, &steps).filter(|_| !text.contains(LEASES));
    let ends_all = ends_all(&steps).map(|line| (line, Harm::EndsAll));
    let credits = credits.map(|line| (line, Harm::Credits));
    ends_all.into_iter().chain(credits).collect()
}

/// The first line that writes into [`GPUSTAT`] or removes from it.
fn credits(text: &str, steps: &[Step]) -> Option<usize> {
    let is_there = |word: &str| {
        let word = word.strip_prefix("/var").unwrap_or(word);
        word.starts_with(GPUSTAT)
    };
    let assigned = steps.iter().flat_map(|step| &step.words);
    let assigned = assigned.filter_map(|word| word.split_once('='));
    let names: BTreeSet<&str> = assigned
        .filter(|(_, value)| is_there(value))
        .map(|(name, _)| name)
        .collect();
    let names_it = |word: &str| {
        is_there(word) || variables(word).any(|name| word.starts_with('$') && names.contains(name))
    };
    let writes = |step: &&Step| {
        let words: Vec<&str> = step.words.iter().map(String::as_str).collect();
        let by_command = WRITERS.contains(&step.command()) && words.iter().any(|it| names_it(it));
        let mut targets = words.iter().enumerate().filter_map(|(at, word)| {
            let (_, target) = word.rsplit_once('>')?;
            match target {
                "" => words.get(at + 1).copied(),
                target => Some(target),
            }
        });
        by_command || targets.any(names_it)
    };
    if is_shell(interpreter(text)) {
        steps.iter().find(writes).map(|step| step.line)
    } else {
        // A script of another language is not understood.
        let mut lines = text.lines();
        let at =
            lines.position(|line| line.contains(GPUSTAT) && !line.trim_start().starts_with('#'))?;
        text.contains("write").then_some(at + 1)
    }
}

/// The first line that ends all processes on a GPU: `fuser -k` on its device, or `kill` of processes that a program
/// found there.
fn ends_all(steps: &[Step]) -> Option<usize> {
    let found = found(steps);
    let mut piped = false;
    for step in steps {
        let finds = finds(step);
        let uses = piped
            || finds
            || step
                .words
                .iter()
                .any(|word| variables(word).any(|name| found.contains(name)));
        let prints = PRINTERS.contains(&step.command()) && !has_substitution(step);
        let asks = step.words.iter().any(|word| word == "-0");
        if fuser_kills(step) || (uses && has_token(step, "kill") && !prints && !asks) {
            return Some(step.line);
        }
        piped = (piped || finds || uses) && step.after == After::Pipe;
    }
    None
}

/// The variables with processes that a program found on a GPU.
fn found(steps: &[Step]) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    // `done < <(program)`: the variables of a loop are read from what stands behind it.
    let behind = steps
        .iter()
        .any(|step| finds(step) && step.words.iter().any(|word| word == "done"));
    let mut piped = behind;
    for step in steps {
        let words: Vec<&str> = step.words.iter().map(String::as_str).collect();
        let uses = finds(step)
            || words
                .iter()
                .any(|word| variables(word).any(|name| found.contains(name)));
        if piped || uses {
            let read = words.iter().position(|word| READERS.contains(word));
            let read = read.map_or(&[][..], |at| &words[at + 1..]);
            let read = read
                .iter()
                .copied()
                .take_while(|word| !word.contains(['<', '>']));
            found.extend(read.filter(|word| !word.starts_with('-')));
        }
        if uses {
            let first = words.iter().find_map(|word| word.split_once('='));
            let is_assigned =
                |(name, value): &(&str, &str)| is_name(name) && value.starts_with(['$', '`', '(']);
            found.extend(first.filter(is_assigned).map(|(name, _)| name));
            let in_loop = words.iter().position(|word| *word == "for");
            found.extend(in_loop.and_then(|at| words.get(at + 1)).copied());
        }
        piped = behind || ((piped || uses) && step.after == After::Pipe);
    }
    found
}

/// Whether a step names a program that finds all processes on a GPU.
fn finds(step: &Step) -> bool {
    let names = |text: &str| step.words.iter().any(|word| word.contains(text));
    let by_device = has_token(step, "lsof") || has_token(step, "fuser");
    names("--query-compute-apps")
        || (names("nvidia-smi") && has_token(step, "pmon"))
        || (by_device && names("/dev/nvidia"))
}

/// `fuser -k /dev/nvidia0`
fn fuser_kills(step: &Step) -> bool {
    let mut words = step.words.iter();
    let kills = words.any(|word| word == "--kill" || is_flag(word, 'k'));
    kills && has_token(step, "fuser") && finds(step)
}

fn has_substitution(step: &Step) -> bool {
    step.words
        .iter()
        .any(|word| word.contains("$(") || word.contains('`'))
}

/// Whether a program is named in a step, also inside of quotes and of `$(...)`.
fn has_token(step: &Step, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let mut parts = step
        .words
        .iter()
        .flat_map(|word| word.split(move |c| !is_part(c)));
    parts.any(|part| part == name)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The variables in a word: `$name`, `${name}`, `${name[@]}`.
fn variables(word: &str) -> impl Iterator<Item = &str> {
    word.split('$').skip(1).map(|rest| {
        let rest = bare(rest);
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> Vec<Harm> {
        let found = harms(&format!("#!/bin/bash\n{code}\n"));
        found.into_iter().map(|(_, harm)| harm).collect()
    }

    #[test]
    fn scripts_that_end_all_processes_on_a_gpu() {
        for code in [
            "fuser -k /dev/nvidia*",
            "fuser -vk /dev/nvidia0 >/dev/null 2>&1 || true",
            "/usr/bin/fuser --kill -TERM /dev/nvidia$i",
            "timeout 5 fuser -k /dev/nvidia0",
            "if [ -e /dev/nvidia0 ]; then fuser -k /dev/nvidia0; fi",
            "kill -9 $(nvidia-smi --query-compute-apps=pid --format=csv,noheader)",
            "kill -9 `lsof -t /dev/nvidia0`",
            "nvidia-smi --query-compute-apps=pid --format=csv,noheader | xargs -r kill -9",
            "nvidia-smi pmon -c 1 | awk '$2 ~ /[0-9]/ {print $2}' | sort -u | xargs kill",
            "lsof -t /dev/nvidia* | xargs -r kill -9",
            "fuser /dev/nvidia0 2>/dev/null | xargs kill",
            "for pid in $(nvidia-smi --query-compute-apps=pid --format=csv,noheader); do\n  kill -9 $pid\ndone",
            "PIDS=\"$(/usr/bin/nvidia-smi --query-compute-apps=pid --format=csv,noheader | sort -u)\"\nfor p in $PIDS; do kill \"$p\"; done",
            "pids=`lsof -t /dev/nvidia*`\n[ -z \"$pids\" ] || kill -KILL ${pids}",
            "nvidia-smi pmon -c 1 | while read gpu pid rest; do\n  [ \"$pid\" = - ] || kill -9 $pid\ndone",
            "while read -r pid; do kill $pid; done < <(nvidia-smi --query-compute-apps=pid --format=csv,noheader)",
            "mapfile -t pids < <(nvidia-smi --query-compute-apps=pid --format=csv,noheader)\nkill -9 \"${pids[@]}\"",
            "nvidia-smi pmon -c 1 | awk '{system(\"kill \" $2)}'",
        ] {
            assert_eq!(of(code), [Harm::EndsAll], "{code}");
        }
    }

    #[test]
    fn harmless_scripts_are_not_named() {
        for code in [
            "nvidia-smi -q >/var/log/gpu",
            "nvidia-smi --query-compute-apps=pid,name --format=csv >>/var/log/apps",
            "nvidia-smi --query-compute-apps=pid --format=csv | logger -t gpus\nkill $(cat /run/site.pid)",
            "# fuser -k /dev/nvidia*",
            "true # kill $(lsof -t /dev/nvidia0)",
            "echo \"admins: never fuser /dev/nvidia0 | kill\"",
            "fuser -v /dev/nvidia0",
            "fuser -k /scratch/$SLURM_JOB_ID",
            "lsof /dev/nvidia0 >/dev/null && logger 'cannot kill it'",
            "pids=$(lsof -t /dev/nvidia0)\nlogger \"would kill $pids\"",
            "pids=$(lsof -t /dev/nvidia0)\nfor p in $pids; do kill -0 $p && logger busy; done",
            "pkill -u $SLURM_JOB_USER -f jupyter",
            "scancel --signal=KILL $SLURM_JOB_ID; nvidia-smi pmon -c 1",
            "cat /run/gpustat/0",
            "ls /run/gpustat >/tmp/list",
            "# echo $SLURM_JOB_ID >/run/gpustat/0",
            "/site/gpustat /run/gpufrac/leases /run/gpustat",
        ] {
            assert_eq!(of(code), [], "{code}");
        }
    }

    #[test]
    fn scripts_that_credit_jobs_by_slurms_numbers() {
        let of_jobstats = "DEST=/run/gpustat\n[ -e $DEST ] || mkdir -m 755 $DEST\n\
            for i in ${GPU_DEVICE_ORDINAL//,/ } ${CUDA_VISIBLE_DEVICES//,/ }; do\n\
            echo $SLURM_JOB_ID $SLURM_JOB_UID > $DEST/$i\ndone\nexit 0";
        for code in [
            of_jobstats,
            "echo $SLURM_JOB_ID >/run/gpustat/$i",
            "echo $SLURM_JOB_ID > \"/var/run/gpustat/$i\"",
            "echo $SLURM_JOB_ID $SLURM_JOB_UID | tee /run/gpustat/0",
            "DEST=/run/gpustat\nrm -f ${DEST}/$i",
        ] {
            assert_eq!(of(code), [Harm::Credits], "{code}");
        }
        let python =
            "#!/usr/bin/python3\nwith open(f'/run/gpustat/{i}', 'w') as f:\n    f.write(job)\n";
        assert_eq!(harms(python), [(2, Harm::Credits)]);
        let both = harms("#!/bin/sh\nfuser -k /dev/nvidia*\nrm -f /run/gpustat/0\n");
        assert_eq!(both, [(2, Harm::EndsAll), (3, Harm::Credits)]);
        let helper = include_str!("../../../../../contrib/neighbours/gpustat");
        assert_eq!(harms(helper), []);
    }
}
