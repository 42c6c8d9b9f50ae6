//! Settings by which Slurm counts GPUs and their shares.

use gpufrac_core::finding::Severity;

use super::words::{has, is, list, names, without_spellings, words};
use super::{Context, Fault, Fix, fault};

pub(super) fn select_type(_: &Context, value: Option<&str>) -> Option<Fault> {
    let right = Fix::Value("select/cons_tres".into());
    match value {
        Some(value) if value.trim() == "select/cons_tres" => None,
        // `SelectType` is another plugin. Cure: `SelectType=select/cons_tres`; restart slurmctld.
        Some(_) => fault(
            Severity::Error,
            "only select/cons_tres counts shares of a GPU",
            right,
        ),
        // `SelectType` is missing. Cure: `SelectType=select/cons_tres`; restart slurmctld.
        None => fault(
            Severity::Warning,
            "only select/cons_tres counts shares of a GPU, and not every release has it by default",
            right,
        ),
    }
}

pub(super) fn select_parameters(context: &Context, value: Option<&str>) -> Option<Fault> {
    // scontrol prints `NONE` where no word is set: slurmctld then takes CR_Core_Memory.
    let words = words(value.filter(|value| !is(value, "NONE")));
    for name in ["MULTIPLE_SHARING_GRES_PJ", "ONE_TASK_PER_SHARING_GRES"] {
        if has(&words, name) {
            let what = match name {
                "MULTIPLE_SHARING_GRES_PJ" => {
                    "Slurm may then divide a job's shares among several GPUs, and a slice is of one"
                }
                _ => "a job of several tasks then needs a GPU for each, and its slice is of one",
            };
            return fault(Severity::Error, what, without(&words, name));
        }
    }
    if !words.is_empty() && !counts_cpus(&words) {
        // `SelectTypeParameters` has no word of CPUs, as with select/linear. Cure: Write the line of the hint.
        return fault(
            Severity::Error,
            "select/cons_tres needs CR_CPU, CR_Core or CR_Socket, with or without _Memory, and slurmctld ends without one",
            Fix::Value(with_cores(&words)),
        );
    }
    if has(&words, "LL_SHARED_GRES") && !context.before(23, 11) {
        // `SelectTypeParameters` has `LL_SHARED_GRES`. Cure: Remove the word.
        return fault(
            Severity::Note,
            "fractions are spread over the devices instead of packed, so that large ones wait longer",
            without(&words, "LL_SHARED_GRES"),
        );
    }
    None
}

fn without(words: &[&str], name: &str) -> Fix {
    let rest: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| !is(word, name))
        .collect();
    match rest.as_slice() {
        [] => Fix::Remove,
        rest if counts_cpus(rest) => Fix::Value(rest.join(",")),
        rest => Fix::Value(with_cores(rest)),
    }
}

/// The words of `SelectTypeParameters` of which select/cons_tres needs one (`select_p_node_init`).
const OF_CPUS: [&str; 6] = [
    "CR_CPU",
    "CR_CPU_Memory",
    "CR_Core",
    "CR_Core_Memory",
    "CR_Socket",
    "CR_Socket_Memory",
];

fn counts_cpus(words: &[&str]) -> bool {
    OF_CPUS.iter().any(|name| has(words, name))
}

/// The words with the default of select/cons_tres; `CR_Memory` alone is of select/linear.
fn with_cores(words: &[&str]) -> String {
    let own = words.iter().filter(|word| !is(word, "CR_Memory"));
    let all = ["CR_Core_Memory"].into_iter().chain(own.copied());
    all.collect::<Vec<_>>().join(",")
}

pub(super) fn gres_types(context: &Context, value: Option<&str>) -> Option<Fault> {
    let needed = context.count_name.gres_types();
    let mut words = words(value);
    for name in needed {
        words = without_spellings(&words, name);
    }
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|name| !names(&words, name))
        .collect();
    if missing.is_empty() {
        return None;
    }
    // `GresTypes` lacks a name. Cure: Write the line of the hint; restart slurmctld and all slurmds.
    fault(
        Severity::Error,
        format!("fractions are counted as {}", missing.join(" and ")),
        Fix::Value(list(&words, &needed, &[])),
    )
}

pub(super) fn accounting_type(context: &Context, _: Option<&str>) -> Option<Fault> {
    if context.accounting || !context.since(23, 11) || !context.before(24, 11) {
        return None;
    }
    // `AccountingStorageType` is not slurmdbd, on a series that then gives waiting jobs no reason. Cure: Nothing, or
    // slurmdbd; Slurm 24.11 gives the reason.
    fault(
        Severity::Note,
        "without slurmdbd Slurm 23.11 and 24.05 give a waiting job no reason, and only the backfill scheduler starts it",
        Fix::Value("accounting_storage/slurmdbd".into()),
    )
}

pub(super) fn accounting_tres(context: &Context, value: Option<&str>) -> Option<Fault> {
    let words = words(value);
    let tres = format!("gres/{}", context.count_name);
    if has(&words, &tres) || !context.accounting {
        return None;
    }
    // The running value contains Slurm's own GRES, which need no line.
    let own = [
        "cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages",
    ];
    // `AccountingStorageTRES` lacks `gres/gpufrac`. Cure: Write the line of the hint.
    fault(
        Severity::Warning,
        "sacct, sreport and limits do not see fractions",
        // Tools of others look for whole GPUs (docs/admin/neighbours.md).
        Fix::Value(list(&words, &["gres/gpu", &tres], &own)),
    )
}
