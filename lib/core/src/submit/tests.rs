//! The decision: what users write, and what comes out.

use proptest::prelude::*;

use super::*;
use crate::count_name::CountName;
use crate::fraction::{Fraction, Units};
use crate::layout::MenuEntry;
use crate::nodes_gres::NodesGres;
use crate::request;
use crate::request::tests::near;
use crate::request::{Amount, GresForm, Kind};

mod burst;
mod mechanisms;
mod share;
mod tasks;

const CONFIG: &str = include_str!("tests/halves.toml");

fn config() -> Config {
    Config::parse(CONFIG, "gpufrac.toml").unwrap()
}

/// Compares each request in a file of `cases` with the answer below it. A request is its partition, its `--gres` and
/// further options; `-` stands for one that is not given, `''` for an empty one. With `--always` the answer is the same
/// to a submission, a change and a step. An answer is `untouched`, or `= TEXT ENTRY` and perhaps a note, or a refusal.
fn cases(config: &Config, name: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/submit/cases");
    let text = std::fs::read_to_string(format!("{folder}/{name}.txt")).unwrap();
    for block in text.split("\n\n") {
        let lines = block.lines().filter(|line| !line.starts_with('#'));
        let (answer, requests): (Vec<&str>, Vec<&str>) =
            lines.partition(|line| line.starts_with("    "));
        assert_eq!(answer.is_empty(), requests.is_empty(), "{block}");
        let answer: Vec<&str> = answer.into_iter().map(str::trim_start).collect();
        for line in requests {
            let (request, occasions) = case(line);
            for occasion in occasions {
                let found = answer_to(config, &request, *occasion);
                assert_eq!(found, answer.join("\n"), "{line}: {occasion:?}");
            }
        }
    }
}

fn case(line: &str) -> (JobRequest<'_>, &'static [Occasion]) {
    let mut words = line.split(' ');
    let mut text = || match words.next() {
        Some("-") | None => None,
        Some("''") => Some(""),
        word => word,
    };
    let mut request = JobRequest {
        partitions: text(),
        tres_per_node: text(),
        ..JobRequest::default()
    };
    let mut occasions: &[Occasion] = &[Occasion::Submit];
    while let Some(option) = text() {
        let mut number = || text().map(|word| word.parse().unwrap());
        match option {
            "--always" => occasions = &[Occasion::Submit, Occasion::Modify, Occasion::Step],
            "--modify" => occasions = &[Occasion::Modify],
            "--step" => occasions = &[Occasion::Step],
            "--colon" => {
                request.form = GresForm::Colon;
                request.forgets_shares = true;
            }
            "--forgets-shares" => request.forgets_shares = true,
            "--marked" => request.marked = true,
            "--ntasks-per-gpu" => request.tasks_per_gpu = true,
            "--exclusive" => request.exclusive = true,
            "--core-spec" => request.core_spec = true,
            "--default-partition" => request.default_partition = text(),
            "--gpus" => request.tres_per_job = text(),
            "--gpus-per-socket" => request.tres_per_socket = text(),
            "--tres-per-task" => request.tres_per_task = text(),
            "--cpus-per-gpu" => request.cpus_per_tres = text(),
            "--mem-per-gpu" => request.mem_per_tres = text(),
            "--gpu-freq" => request.tres_freq = text(),
            "--ntasks" => request.tasks = number(),
            "--ntasks-per-node" => request.tasks_per_node = number(),
            "--nodes" => request.max_nodes = number(),
            "--min-nodes" => request.min_nodes = number(),
            "--cpus-per-task" => request.cpus_per_task = number(),
            "--mincpus" => request.cpus_per_node = number(),
            "--mem" => request.memory = number().map(|mib| Memory::PerNode(mib.into())),
            "--mem-per-cpu" => request.memory = number().map(|mib| Memory::PerCpu(mib.into())),
            "--all-memory" => request.default_memory = Some(Memory::PerNode(0)),
            "--def-mem-per-cpu" => {
                request.default_memory = number().map(|mib| Memory::PerCpu(mib.into()));
            }
            "--def-mem-per-node" => {
                request.default_memory = number().map(|mib| Memory::PerNode(mib.into()));
            }
            "--slurm" => request.per_gpu = Some(share::OF_SLURM),
            "--burst" => request.burst = number().map(Units),
            other => panic!("{other} in {line}"),
        }
    }
    (request, occasions)
}

fn answer_to(config: &Config, request: &JobRequest<'_>, occasion: Occasion) -> String {
    match decide(config, request, occasion) {
        Ok(Verdict::Untouched) => "untouched".to_owned(),
        Ok(Verdict::Rewritten {
            text,
            entry,
            share,
            note,
        }) => {
            let note = note.map(|note| format!("\n{note}")).unwrap_or_default();
            format!("= {text} {entry}{}{note}", share::options(&share))
        }
        Err(refusal) => refusal.to_string(),
    }
}

fn job<'a>(partition: &'a str, tres: &'a str) -> JobRequest<'a> {
    JobRequest {
        partitions: Some(partition),
        tres_per_node: Some(tres),
        ..JobRequest::default()
    }
}

/// Promise (admins): `[gres] name` is the name by which Slurm counts, and users write `gpufrac`.
/// With `texts_of_slurm_are_read_as_gpufracs`, `fractions_are_judged_by_the_name_of_the_file`,
/// `conf_prints_the_name_by_which_slurm_counts`, `another_name_serves_steps_tasks_and_updates`.
#[test]
fn slurm_counts_by_the_name_of_the_file() {
    let mut config = config();
    config.count_name = "frac".parse().unwrap();
    let text = |tres: &str, partition: &str, occasion| {
        let mut request = job(partition, tres);
        request.form = GresForm::Slash;
        request.marked = true;
        match decide(&config, &request, occasion) {
            Ok(Verdict::Rewritten { text, .. }) => text,
            other => panic!("{tres}: {other:?}"),
        }
    };
    let quarter = "gres/frac:25,gres/shard:25";
    for tres in [
        "gres/gpufrac:0.25",
        "gres/gpu:0.25",
        // What a client with the same file wrote, and one whose file has no other name.
        quarter,
        "gres/gpufrac:25,gres/shard:25",
    ] {
        for occasion in [Occasion::Submit, Occasion::Modify, Occasion::Step] {
            assert_eq!(text(tres, "gpu", occasion), quarter, "{tres}");
        }
    }
    let whole = "gres/gpu:whole:1,gres/frac:100";
    assert_eq!(text("gres/gpufrac:1", "full", Occasion::Submit), whole);
    assert_eq!(text(whole, "full", Occasion::Submit), whole);
    // Names of others stay, and a count under both names is one too many.
    let beside = "gres/fractal:3,gres/gpufrac:0.25";
    let mut request = job("gpu", beside);
    request.form = GresForm::Slash;
    let refusal = decide(&config, &request, Occasion::Submit);
    assert!(
        matches!(refusal, Ok(Verdict::Rewritten { text, .. }) if text.starts_with("gres/fractal:3,gres/frac:25"))
    );
    let twice = job("gpu", "gpufrac:0.25,frac:25");
    assert!(decide(&config, &twice, Occasion::Submit).is_err());
}

fn refused(request: &JobRequest<'_>, occasion: Occasion) -> String {
    decide(shared_config(), request, occasion)
        .unwrap_err()
        .to_string()
}

fn refusal(partition: &str, tres: &str) -> String {
    refused(&job(partition, tres), Occasion::Submit)
}

fn untouched(request: &JobRequest<'_>, occasion: Occasion) {
    let verdict = decide(shared_config(), request, occasion);
    assert_eq!(verdict, Ok(Verdict::Untouched), "{request:?}");
}

#[test]
fn fractions_become_counts() {
    cases(shared_config(), "fractions_become_counts");
}

#[test]
fn rounding_is_said() {
    cases(shared_config(), "rounding_is_said");
}

/// Promise (users): several pools or partitions: the costliest rounding.
#[test]
fn several_pools_give_the_costliest() {
    cases(shared_config(), "several_pools_give_the_costliest");
}

#[test]
fn half_a_gpu_does_not_become_a_whole_one() {
    cases(shared_config(), "half_a_gpu_does_not_become_a_whole_one");
}

#[test]
fn whole_gpus() {
    cases(shared_config(), "whole_gpus");
}

/// Promise (placement): an integer is a number of whole GPUs: `gpufrac:4`; `1.5` and forged counts are refused, and 25
/// % is written 0.25.
/// With `a_node_has_no_more_gpus_than_its_pool_names`, `several_gpus_are_limited_by_the_nodes_of_slurm_conf`,
/// `decisions_are_stable_and_never_too_little`.
#[test]
fn several_gpus_by_an_integer() {
    cases(shared_config(), "several_gpus_by_an_integer");
}

fn decided(config: &Config, request: &JobRequest<'_>) -> Result<String, String> {
    match decide(config, request, Occasion::Submit) {
        Ok(Verdict::Rewritten { text, .. }) => Ok(text),
        Ok(Verdict::Untouched) => panic!("{request:?}"),
        Err(refusal) => Err(refusal.to_string()),
    }
}

fn nodes_gres(slurm_conf: &str) -> NodesGres {
    NodesGres::of_slurm_conf(slurm_conf, &CountName::default(), &|_| None).unwrap()
}

/// slurmctld's plugin knows the nodes.
#[test]
fn several_gpus_are_limited_by_the_nodes_of_slurm_conf() {
    let config = Config::parse(
        "version = 1\n[pool.p]\nmechanism = \"mps\"\ntenancy = \"private\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n[1-9]\"\n",
        "test",
    );
    let config = config.unwrap();
    let with = |nodes: &str, tres: &str, form: GresForm, exclusive| {
        let nodes = nodes_gres(nodes);
        let tres = format!("{}{tres}", form.prefix());
        let request = JobRequest {
            form,
            forgets_shares: form == GresForm::Colon,
            marked: true,
            exclusive,
            nodes: Some(&nodes),
            ..job("gpu", &tres)
        };
        decided(&config, &request)
    };
    let four = "NodeName=n1 Gres=gpu:mps:4,shard:mps:400,gpufrac:400\n";
    let eight = "NodeName=n2 Gres=gpu:mps:8,shard:mps:800,gpufrac:800\n";
    // Another pool has GPUs of the node, too.
    let more = "NodeName=n3 Gres=gpu:mps:4,gpu:half:8,shard:mps:400,shard:half:400,gpufrac:800\n";
    let both = format!("{four}{eight}");
    for form in [GresForm::Slash, GresForm::Colon] {
        for (nodes, gpus, most) in [(four, 5, 4), (eight, 9, 8), (&both, 16, 8)] {
            let said = with(nodes, &format!("gpufrac:{gpus}"), form, false).unwrap_err();
            let reason = format!(
                "gpufrac: \"gpufrac:{gpus}\" is more whole GPUs than a job can have of a node; write at most --gres=gpufrac:{most}, with --nodes"
            );
            assert!(said.starts_with(&reason), "{said}");
            let pair = form.prefix().to_owned();
            let pair = format!("gpu:mps:{gpus},{pair}gpufrac:{gpus}00");
            assert_eq!(with(nodes, &pair, form, false), Err(said));
        }
    }
    // Before 23.11 only a job that leaves no unit of its nodes to others is counted correctly.
    let old = |nodes, gpus, exclusive| {
        with(
            nodes,
            &format!("gpufrac:{gpus}"),
            GresForm::Colon,
            exclusive,
        )
    };
    for (nodes, gpus) in [(four, 4), (eight, 8), (&both, 8)] {
        let counted = Ok(format!("gres:gpu:mps:{gpus},gres:gpufrac:{gpus}00"));
        assert_eq!(old(nodes, gpus, false), counted);
        let pair = format!("gpu:mps:{gpus},gres:gpufrac:{gpus}00");
        assert_eq!(with(nodes, &pair, GresForm::Colon, false), counted);
    }
    for (nodes, gpus, all) in [
        (four, 2, Some(4)),
        (&both, 4, Some(8)),
        (more, 4, None),
        (&format!("{more}{four}"), 4, None),
    ] {
        let said = old(nodes, gpus, false).unwrap_err();
        assert!(
            said.contains("write --gres=gpufrac:1, on several nodes with --nodes"),
            "{said}"
        );
        let way = all.map(|all| format!("or --gres=gpufrac:{all} for all GPUs of a node"));
        assert_eq!(
            way.is_some(),
            said.contains(" for all GPUs of a node"),
            "{said}"
        );
        assert!(said.ends_with(&way.unwrap_or_default()), "{said}");
        // Slurm starts it only where nobody else is.
        assert!(old(nodes, gpus, true).is_ok());
        assert!(with(nodes, &format!("gpufrac:{gpus}"), GresForm::Slash, false).is_ok());
    }
}

/// `gpus` of a pool gives the number of its GPUs on a node.
#[test]
fn a_node_has_no_more_gpus_than_its_pool_names() {
    let text = |more: &str| {
        format!(
            "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"uniform\"\nmenu = [\"1/4\"]\ngpu = \"H100-80\"\n\
             partitions = [\"gpu\"]\nnodes = \"n1\"\ngpus = [0, 1, 2, 3]\n\
             [pool.w]\nmechanism = \"mig\"\nlayout = \"whole\"\ngpu = \"H100-80\"\npartitions = [\"whole\"]\nnodes = \"w1\"\n{more}"
        )
    };
    let config = Config::parse(&text("gpus = [0, 1]\n"), "test").unwrap();
    let decided = |partition: &str, tres: &str, form: GresForm| {
        let tres = format!("{}{tres}", form.prefix());
        let request = JobRequest {
            form,
            forgets_shares: form == GresForm::Colon,
            marked: true,
            ..job(partition, &tres)
        };
        decided(&config, &request)
    };
    assert_eq!(
        decided("gpu", "gpufrac:4", GresForm::Slash).unwrap(),
        "gres/gpu:uniform:4,gres/gpufrac:400"
    );
    assert_eq!(
        decided("gpu", "gpufrac:8", GresForm::Slash).unwrap_err(),
        "gpufrac: \"gpufrac:8\" is more whole GPUs than a job can have of a node; write at most --gres=gpufrac:4, with --nodes for several nodes, or --gres=gpufrac:0.08 for 8% of a GPU"
    );
    // The Type with enough GPUs.
    assert_eq!(
        decided("gpu,whole", "gpufrac:2", GresForm::Slash).unwrap(),
        "gres/gpu:whole:2,gres/gpufrac:200"
    );
    assert_eq!(
        decided("gpu,whole", "gpufrac:3", GresForm::Slash).unwrap(),
        "gres/gpu:uniform:3,gres/gpufrac:300"
    );
    // Slurm before 23.11 gives a GPU whole while jobs have pieces of it.
    assert_eq!(
        decided("gpu", "gpufrac:2", GresForm::Colon).unwrap_err(),
        "gpufrac: this Slurm (before 23.11.5) cannot count several whole GPUs of partition gpu, whose GPUs are shared too: \
         it gives a GPU whole while jobs still have parts of it; write --gres=gpufrac:1, on several nodes with --nodes, \
         or use GPUs that are never shared: --partition=whole"
    );
    assert_eq!(
        decided("gpu", "gpufrac:1", GresForm::Colon).unwrap(),
        "gres:gpufrac:100,gres:shard:uniform:100"
    );
    assert_eq!(
        decided("gpu,whole", "gpufrac:2", GresForm::Colon).unwrap(),
        "gres:gpu:whole:2,gres:gpufrac:200"
    );
}

#[test]
fn pairs_are_left_as_they_are() {
    cases(shared_config(), "pairs_are_left_as_they_are");
}

#[test]
fn contradictions_are_refused() {
    cases(shared_config(), "contradictions_are_refused");
}

/// Promise (users): Slurm's other GPU options are refused beside a fraction, with what to write instead.
/// With `options_that_do_not_count_per_node_say_what_to_write`.
#[test]
fn options_that_do_not_go_with_a_fraction() {
    cases(shared_config(), "options_that_do_not_go_with_a_fraction");
}

#[test]
fn a_reservation_may_have_a_partition_of_its_own() {
    let config = Config::parse(
        "version = 1\n[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
         partitions = [\"gpu\"]\nnodes = \"n1\"\n[partition.gpu]\ndefault = 0.5\n",
        "gpufrac.toml",
    );
    let config = config.unwrap();
    let decided = |default_partition, partitions, tres| {
        let request = JobRequest {
            partitions,
            default_partition: Some(default_partition),
            reserved: true,
            tres_per_node: tres,
            ..JobRequest::default()
        };
        match decide(&config, &request, Occasion::Submit) {
            Ok(Verdict::Rewritten { entry, .. }) => Ok(Some(entry.units.0)),
            Ok(Verdict::Untouched) => Ok(None),
            Err(refusal) => Err(refusal.to_string()),
        }
    };
    let quarter = Some("gpufrac:0.25");
    assert_eq!(decided("cpu", None, quarter), Ok(Some(25)));
    assert_eq!(decided("gpu", None, quarter), Ok(Some(25)));
    decided("gpu", Some("cpu"), quarter).unwrap_err();
    assert_eq!(decided("gpu", None, None), Ok(None));
    assert_eq!(decided("gpu", Some(""), None), Ok(None));
    assert_eq!(decided("cpu", Some("gpu"), None), Ok(Some(50)));
}

/// Promise (users): a step that asks for more than its job has is refused with a message.
/// With `steps.rs::a_step_cannot_have_more_than_its_job`, `steps_do_not_divide_a_whole_gpu`.
#[test]
fn a_step_cannot_have_more_than_its_job() {
    let hint = |own, tres| match decide(shared_config(), &job("gpu", tres), Occasion::Step) {
        Ok(Verdict::Rewritten { entry, .. }) => beyond_job(own, &entry, false),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        hint("0.25", "gpufrac:0.5").unwrap(),
        "gpufrac: the job has 0.25 of a GPU on each of its nodes, and a step can have no more of it; \
         write at most --gres=gpufrac:0.25, or leave --gres out for all of it"
    );
    for own in ["1", "4"] {
        let whole = hint(own, "gpufrac:0.5").unwrap();
        assert!(whole.contains("leave --gres out"), "{whole}");
    }
    let several = |own, tres: &str, form| {
        let step = JobRequest {
            form,
            forgets_shares: form == GresForm::Colon,
            ..job("full", tres)
        };
        match decide(shared_config(), &step, Occasion::Step) {
            Ok(Verdict::Rewritten { entry, .. }) => {
                beyond_job(own, &entry, form == GresForm::Colon)
            }
            other => panic!("{other:?}"),
        }
    };
    for form in [GresForm::Slash, GresForm::Colon] {
        assert_eq!(several("4", "gpufrac:4", form), None);
        assert_eq!(several("4", "gpufrac:1", form), None);
        let more = several("4", "gpufrac:5", form).unwrap();
        assert!(
            more.contains("the job has 4 GPUs") && more.contains("at most --gres=gpufrac:4"),
            "{more}"
        );
    }
    for (own, tres) in [
        ("0.25", "gpufrac:0.25"),
        ("0.125", "gpufrac:0.125"),
        ("0.5", "gpufrac:0.25"),
        ("", "gpufrac:0.5"),
        ("x", "gpufrac:0.5"),
    ] {
        assert_eq!(hint(own, tres), None, "{own} {tres}");
    }
    // A seventh is shown as 0.143, and costs 14 units.
    let seventh = job("slices", "gpufrac:0.143");
    match decide(shared_config(), &seventh, Occasion::Step) {
        Ok(Verdict::Rewritten { entry, .. }) => {
            assert_eq!(beyond_job("0.143", &entry, false), None)
        }
        other => panic!("{other:?}"),
    }
}

/// Promise (isolation): no spelling of `gpu`, `shard` or `mps` bypasses the rules.
/// With `mps_of_slurm_is_not_the_mechanism_of_this_name`, `mps_of_slurm_is_refused_in_a_partition_with_pools`.
#[test]
fn raw_requests_in_partitions_with_pools() {
    cases(shared_config(), "raw_requests_in_partitions_with_pools");
}

/// Promise (users): `gpufrac:percent:25` is `gpufrac:0.25`, in jobs and steps; what other submitters write, by
/// docs/admin/neighbours.md, is a quarter.
/// With `a_whole_number_of_percent`, `submitters_get_a_quarter_as_the_page_says`,
/// `common_wrong_requests_are_answered_once_with_the_right_one`,
/// `slurm_counts_the_fractions_of_steps_and_all_run_on_the_jobs_slice`.
#[test]
fn a_percentage_is_the_fraction() {
    cases(shared_config(), "a_percentage_is_the_fraction");
}

#[test]
fn mps_of_slurm_is_not_the_mechanism_of_this_name() {
    cases(
        shared_config(),
        "mps_of_slurm_is_not_the_mechanism_of_this_name",
    );
}

#[test]
fn advice_is_what_can_be_had_there() {
    let small = Config::parse(
        "version = 1\n[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
         partitions = [\"gpu\", \"gpuu\"]\nnodes = \"n1\"\n[partition.gpu]\nmax = 0.125\n",
        "gpufrac.toml",
    );
    let small = small.unwrap();
    let refusal_of = |request: &JobRequest<'_>| decide(&small, request, Occasion::Submit);
    let message = |request: &JobRequest<'_>| refusal_of(request).unwrap_err().to_string();
    // No pool lends a whole GPU, and the rules do not allow all sizes of the menu.
    assert_eq!(
        message(&job("gpu", "gpu:1")),
        "gpufrac: GPUs of partition gpu are shared, and gpu cannot be asked for by itself; write --gres=gpufrac:0.125"
    );
    assert!(!refusal("gpu", "gpufrac:0.25,gpu:1").contains("gpufrac:1"));
    // A partition that lends whole GPUs has another message.
    let message_of_big = refusal("big", "gpu:1");
    assert!(
        message_of_big.ends_with("or --gres=gpufrac:0.5 or --gres=gpufrac:1"),
        "{message_of_big}"
    );

    // A partition that Slurm does not have is not recommended.
    let where_slurm_has = |exists: &dyn Fn(&str) -> bool| {
        message(&JobRequest {
            existing: Some(Existing(exists)),
            ..job("cpu", "gpufrac:0.25")
        })
    };
    assert_eq!(
        where_slurm_has(&|name| name != "gpuu"),
        "gpufrac: partition \"cpu\" has no fractions of GPUs; use --partition=gpu"
    );
    assert_eq!(
        where_slurm_has(&|_| false),
        "gpufrac: partition \"cpu\" has no fractions of GPUs; no other partition of this cluster has any: \
         ask the admin for the pools of gpufrac.toml"
    );
    let with_none = message(&job("gpu", "gpufrac:0.125,none"));
    assert!(with_none.contains("leave none out"), "{with_none}");
}

/// Promise (users): a request with a GPU Type that slurm.conf no longer has is answered with that Type and the fraction
/// to write.
/// With `types_are_read_from_the_lines_of_nodes`.
#[test]
fn a_type_that_nothing_in_the_cluster_has_is_refused_where_gpus_are_shared() {
    let types =
        nodes_gres("Gres=gpu:half:16\nGres=gpu:slices:8\nGres=gpu:whole:8\nGres=gpu:t4:1\n");
    let with = |request: JobRequest<'static>, nodes: &NodesGres| {
        let request = JobRequest {
            nodes: Some(nodes),
            ..request
        };
        decide(shared_config(), &request, Occasion::Submit).map_err(|refusal| refusal.to_string())
    };
    let option = JobRequest {
        tres_per_job: Some("gres/gpu:h100:1"),
        ..job("gpu", "")
    };
    for request in [
        job("gpu", "gpu:h100:1"),
        job("gpu", "gres:tmpdisk:1,gres:gpu:h100"),
        job("gpu", "gpu:2g.20gb:1"),
        option,
    ] {
        assert_eq!(
            with(request, &types)
                .unwrap_err()
                .replace("2g.20gb", "h100"),
            "gpufrac: no GPU of this cluster has the Type \"h100\", and those of partition gpu are shared; \
             write --gres=gpufrac:0.125 or --gres=gpufrac:0.25 or --gres=gpufrac:0.5; \
             for a whole GPU --gres=gpufrac:1 --partition=big or --partition=full"
        );
    }
    for request in [
        // Slurm gives these GPUs itself; upper and lower case are the same.
        job("gpu", "gpu:t4:1"),
        job("gpu", "gpu:T4:1"),
        job("gpu", "gpu:h100:0"),
        // gpufrac does not check partitions without a pool.
        job("cpu", "gpu:h100:1"),
        job("raw", "gpu:h100:1"),
        job("cpu", "gpu:2080ti:1"),
        job("cpu", "gpu:4090:2"),
        job("cpu", "gpu:1g.5gb:1"),
        job("cpu", "gpu:1g.5gb"),
        job("cpu", "gpu:nvidia_a100_1g.5gb+me:1"),
    ] {
        assert_eq!(with(request, &types), Ok(Verdict::Untouched), "{request:?}");
    }
}

#[test]
fn gpus_of_a_type_that_no_pool_has_are_slurms_own() {
    cases(
        shared_config(),
        "gpus_of_a_type_that_no_pool_has_are_slurms_own",
    );
}

#[test]
fn exclusive_jobs_get_no_shares_and_no_default() {
    cases(
        shared_config(),
        "exclusive_jobs_get_no_shares_and_no_default",
    );
}

#[test]
fn gpus_that_slurm_derives_from_tasks_are_asked_for_as_well() {
    cases(
        shared_config(),
        "gpus_that_slurm_derives_from_tasks_are_asked_for_as_well",
    );
}

/// Promise (users): a partition without a pool.
#[test]
fn partitions_without_a_pool() {
    cases(shared_config(), "partitions_without_a_pool");
}

/// Promise (users): min, max, default of a partition.
/// With `defaults_of_partitions`.
#[test]
fn rules_of_partitions() {
    cases(shared_config(), "rules_of_partitions");
}

#[test]
fn defaults_of_partitions() {
    cases(shared_config(), "defaults_of_partitions");
}

#[test]
fn a_change_without_a_partition_considers_all_pools() {
    let text = CONFIG
        .replace("partitions = [\"slices\"]", "partitions = [\"gpu2\"]")
        .replace("layout = \"slices\"", "layout = \"halves\"");
    let config = Config::parse(&text, "gpufrac.toml").unwrap();
    let modify = JobRequest {
        partitions: None,
        ..job("", "gpufrac:0.125")
    };
    match decide(&config, &modify, Occasion::Modify) {
        Ok(Verdict::Rewritten { entry, note, .. }) => {
            assert_eq!(entry.units, Units(25));
            assert!(note.unwrap().contains("all pools of this cluster"));
        }
        other => panic!("{other:?}"),
    }
}

/// Requests close to the grammar, with every other input of the decision.
fn any_case() -> impl Strategy<Value = (String, Option<&'static str>, GresForm, Occasion)> {
    let item = prop_oneof![
        3 => (1_u32..=1000).prop_map(|n| format!("gpufrac:{}", Fraction::new(n, 1000).unwrap())),
        1 => (1_u32..90).prop_map(|n| format!("gpufrac:{n}G")),
        1 => (0_u32..=110).prop_map(|n| format!("gpufrac:percent:{n}")),
        1 => (1_u32..=100).prop_map(|n| format!("gres/gpufrac:{n},gres/shard:{n}")),
        1 => (1_u32..=20).prop_map(|n| format!("gpufrac:{n}")),
        1 => (1_u32..=20, 1_u32..=20).prop_map(|(n, m)| format!("gres/gpu:whole:{n},gres/gpufrac:{m}00")),
        1 => near(),
    ];
    let others = proptest::collection::vec("gres/[a-f]{1,4}:[0-9]{1,2}|x=[a-f]{0,3}", 0..3);
    let text = (others.clone(), item, others).prop_map(|(before, item, after)| {
        let all: Vec<String> = before.into_iter().chain([item]).chain(after).collect();
        all.join(",")
    });
    let partition = proptest::sample::select(vec![
        None,
        Some("gpu"),
        Some("old"),
        Some("mixed"),
        Some("slices"),
        Some("full"),
        Some("big"),
        Some("ruled"),
        Some("gpu,old"),
        Some("cpu"),
    ]);
    let form = proptest::sample::select(vec![GresForm::Colon, GresForm::Slash]);
    let occasion =
        proptest::sample::select(vec![Occasion::Submit, Occasion::Modify, Occasion::Step]);
    (text, partition, form, occasion)
}

/// At least `cases` cases, or as many as `PROPTEST_CASES` asks for.
fn at_least(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases.max(cases),
        ..default
    }
}

/// The items that are not about GPUs. An empty string, which some clients send for nothing, has none.
fn others(text: &str) -> Vec<String> {
    let items = request::parse(text).unwrap();
    let other =
        |item: &&request::Item<'_>| matches!(item.kind, Kind::Other) && !item.text.is_empty();
    items
        .iter()
        .filter(other)
        .map(|item| item.text.to_owned())
        .collect()
}

proptest! {
    #![proptest_config(at_least(4000))]

    #[test]
    fn decisions_are_stable_and_never_too_little((text, partition, form, occasion) in any_case()) {
        let config = shared_config();
        let request = JobRequest {
            partitions: partition,
            form,
            forgets_shares: form == GresForm::Colon,
            tres_per_node: Some(&text),
            ..JobRequest::default()
        };
        let Ok(Verdict::Rewritten { text: tres_per_node, entry, .. }) = decide(config, &request, occasion) else {
            return Ok(());
        };
        // A second decision about the result changes nothing and has no note.
        let again = JobRequest { tres_per_node: Some(&tres_per_node), ..request };
        let expected = Verdict::Rewritten { text: tres_per_node.clone(), entry, share: Share::default(), note: None };
        prop_assert_eq!(decide(config, &again, occasion), Ok(expected));
        // All other items are still there, byte for byte and in order.
        prop_assert_eq!(others(&text), others(&tres_per_node));
        // The grant is at least the request, at most one GPU unless several are requested, and every pool can make it.
        let gpus = entry.units.gpus().unwrap_or(1);
        prop_assert!(entry.units.0 >= 1 && (entry.units.0 <= 100 || entry.units.gpus().is_some()));
        if gpus > 1 {
            let devices = format!("gpu:whole:{gpus}");
            prop_assert!(tres_per_node.contains(&devices), "{tres_per_node}");
        }
        let destination = Decision::of(config, &request, occasion);
        let makers: Vec<_> = destination.pools.iter().filter_map(|pool| pool.layout.entry(entry.units.of_each_gpu())).collect();
        // A step gets the smallest size of its pools.
        let all = |good: &dyn Fn(&MenuEntry) -> bool| match occasion {
            Occasion::Step => makers.iter().any(|size| good(size)),
            _ => makers.iter().all(|size| good(size)),
        };
        let asked = request::parse(&text).unwrap().into_iter().find_map(|item| match item.kind {
            Kind::Gpufrac { amount, .. } => Some(amount),
            _ => None,
        });
        match asked {
            Some(Amount::Fraction(fraction) | Amount::Percent(fraction)) => prop_assert!(all(&|size| size.fraction.covers(fraction))),
            Some(Amount::Memory(memory)) => prop_assert!(all(&|size| size.memory >= memory)),
            // Units that gpufrac wrote earlier, or a number of GPUs.
            Some(Amount::Integer(number)) => {
                let units = u64::from(entry.units.0);
                prop_assert!(number == units || number * 100 == units && number == u64::from(gpus));
            }
            // The `default` of the partition.
            None => prop_assert_eq!(partition, Some("ruled")),
        }
    }
}

proptest! {
    #![proptest_config(at_least(1000))]

    #[test]
    fn any_text_anywhere_is_decided_or_refused(texts in proptest::collection::vec(proptest::option::of(prop_oneof!["\\PC{0,20}", near()]), 8)) {
        let config = shared_config();
        let text = |position: usize| texts[position].as_deref();
        let request = JobRequest {
            partitions: text(0).or(Some("gpu")),
            default_partition: None,
            form: GresForm::Slash,
            tres_per_node: text(1),
            tres_per_job: text(2),
            tres_per_socket: text(3),
            tres_per_task: text(4),
            cpus_per_tres: text(5),
            mem_per_tres: text(6),
            tres_freq: text(7),
            ..JobRequest::default()
        };
        for occasion in [Occasion::Submit, Occasion::Modify, Occasion::Step] {
            if let Err(refusal) = decide(config, &request, occasion) {
                let message = refusal.to_string();
                prop_assert!(message.starts_with("gpufrac: "));
                prop_assert!(!message.contains(char::is_control), "{message:?}");
            }
        }
    }
}

/// The configuration, solved once for all cases.
fn shared_config() -> &'static Config {
    static CONFIG_ONCE: std::sync::OnceLock<Config> = std::sync::OnceLock::new();
    CONFIG_ONCE.get_or_init(config)
}

/// Promise (admins): no message about a request proposes what the cluster does not give.
/// With `an_update_to_a_type_that_no_node_has_is_refused`,
/// `more_tasks_than_the_nodes_have_room_for_are_refused_with_a_number_that_fits`.
#[test]
fn no_size_is_proposed_that_the_cluster_does_not_give() {
    cases(
        shared_config(),
        "no_size_is_proposed_that_the_cluster_does_not_give",
    );
}

#[test]
fn an_update_to_a_type_that_no_node_has_is_refused() {
    let nodes = "NodeName=n1 Gres=gpu:half:4,shard:half:200,gpufrac:200,gpu:t4:1\n";
    let name = CountName::default();
    let nodes = NodesGres::of_slurm_conf(nodes, &name, &|_| None).unwrap();
    let update = |tres| JobRequest {
        partitions: None,
        nodes: Some(&nodes),
        ..job("", tres)
    };
    let said = refused(&update("gpu:h100:1"), Occasion::Modify);
    assert!(
        said.starts_with("gpufrac: no GPU of this cluster has the Type \"h100\""),
        "{said}"
    );
    untouched(&update("gpu:t4:1"), Occasion::Modify);
}
