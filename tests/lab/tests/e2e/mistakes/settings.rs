//! Lines of Slurm's files that were forgotten, copied from another site, or changed later.

use gpufrac_lab::LabError;

use super::{Fate, Mistake, Site};

/// A line of slurm.conf with a mistake, which takes effect at the next restart.
macro_rules! in_file {
    ($name:literal, $file:literal, $from:literal, $to:literal, $said:literal) => {
        Mistake::new(
            $name,
            |site| {
                site.change(&site.etc($file), $from, $to);
                Ok(())
            },
            &[$said],
            Fate::NotTried,
        )
        .quick()
    };
}

pub(super) const MISTAKES: &[Mistake] = &[
    in_file!(
        "a line of slurm.conf that was lost",
        "slurm.conf",
        "JobSubmitPlugins=gpufrac\n",
        "",
        "add the line: JobSubmitPlugins=gpufrac"
    ),
    in_file!(
        "no prolog in slurm.conf",
        "slurm.conf",
        "\nProlog=",
        "\n#Prolog=",
        "Prolog"
    ),
    in_file!(
        "no epilog in slurm.conf",
        "slurm.conf",
        "\nEpilog=",
        "\n#Epilog=",
        "Epilog"
    ),
    in_file!(
        "the prolog in the place of the epilog",
        "slurm.conf",
        "bin/epilog\n",
        "bin/prolog\n",
        "gpufrac-epilog"
    ),
    in_file!(
        "the prolog as that of tasks",
        "slurm.conf",
        "\nProlog=",
        "\nTaskProlog=",
        "Prolog"
    ),
    in_file!(
        "a prolog beside others in a folder that has none",
        "slurm.conf",
        "bin/prolog\n",
        "bin/prolog.d/*\n",
        "Prolog"
    ),
    in_file!(
        "another plugstack.conf than the one that is written",
        "slurm.conf",
        "PluginDir=",
        "PlugStackConfig=/nowhere/plugstack.conf\nPluginDir=",
        "spank_gpufrac.so"
    ),
    in_file!(
        "plugstack.conf with a folder that has no files",
        "plugstack.conf",
        "required ",
        "include /etc/slurm-of-nobody/plugstack.conf.d/*\n#",
        "spank_gpufrac.so"
    ),
    in_file!(
        "a partition without the nodes of its pool",
        "slurm.conf",
        "PartitionName=gpu Nodes=ALL",
        "PartitionName=gpu Nodes=nobody\nNodeName=nobody CPUs=1 State=FUTURE\n#",
        "partition gpu"
    ),
    in_file!(
        "the controller's prolog in the place of that of nodes",
        "slurm.conf",
        "\nProlog=",
        "\nPrologSlurmctld=",
        "Prolog"
    ),
    in_file!(
        "a node that was renamed",
        "slurm.conf",
        "\nNodeName=",
        "\nNodeName=new",
        "no pool"
    ),
    in_file!(
        "gres.conf of another node",
        "gres.conf",
        "NodeName=",
        "NodeName=other",
        "gres.conf"
    ),
    in_file!(
        "GPUs that Slurm detects by itself",
        "gres.conf",
        "Name=gpu Type=half",
        "Name=gpu AutoDetect=nvml Type=half",
        "AutoDetect"
    ),
    in_file!(
        "gpufrac is no GresTypes",
        "slurm.conf",
        "GresTypes=gpu,shard,gpufrac",
        "GresTypes=gpu,shard",
        "write instead: GresTypes=gpu,shard,gpufrac"
    ),
    in_file!(
        "PrologFlags with NoHold",
        "slurm.conf",
        "PrologFlags=Alloc,Contain,DeferBatch",
        "PrologFlags=Alloc,DeferBatch,NoHold",
        "PrologFlags"
    ),
    in_file!(
        "tasks without control groups",
        "slurm.conf",
        "TaskPlugin=task/affinity,task/cgroup",
        "TaskPlugin=task/affinity",
        "write instead: TaskPlugin=task/cgroup"
    ),
    in_file!(
        "GPUs are not counted by device",
        "slurm.conf",
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\n",
        "SelectType=select/linear\nSelectTypeParameters=CR_Memory\n",
        "write instead: SelectType=select/cons_tres"
    ),
    in_file!(
        "devices are not constrained",
        "cgroup.conf",
        "ConstrainDevices=yes",
        "ConstrainDevices=no",
        "ConstrainDevices"
    ),
    in_file!(
        "plugstack.conf with optional",
        "plugstack.conf",
        "required ",
        "optional ",
        "required"
    ),
    in_file!(
        "the former GPUs in gres.conf",
        "gres.conf",
        "Name=gpu Type=half",
        "Name=gpu Type=h100",
        "Type half"
    ),
    in_file!(
        "the devices of other GPUs in gres.conf",
        "gres.conf",
        "half[0-3]",
        "half[4-7]",
        "half4"
    ),
    in_file!(
        "shares of one device alone in gres.conf",
        "gres.conf",
        "Name=shard",
        "Flags=one_sharing Name=shard",
        "Flags=one_sharing on a line with Name=shard"
    ),
    in_file!(
        "another gpufrac.toml in plugstack.conf",
        "plugstack.conf",
        "config=",
        "config=/nowhere",
        "does not exist: no job with a GPU starts on this node"
    ),
    in_file!(
        "a plugin in upper case",
        "slurm.conf",
        "JobSubmitPlugins=gpufrac",
        "JobSubmitPlugins=GpuFrac",
        "write instead: JobSubmitPlugins=gpufrac"
    ),
    Mistake::new(
        "no cgroup.conf on a node",
        |site| {
            site.remove(&site.etc("cgroup.conf"));
            Ok(())
        },
        &[
            "ConstrainDevices is not set",
            "add the line: ConstrainDevices=yes",
        ],
        Fate::NotTried,
    )
    .quick(),
    Mistake::new(
        "an older slurm.conf on a node",
        |site| {
            site.change(
                &site.etc("slurm.conf"),
                "ClusterName=",
                "MaxJobCount=9000\nClusterName=",
            );
            Ok(())
        },
        &[
            "this is not the file by which slurmctld runs",
            "restart slurm",
        ],
        Fate::NotTried,
    )
    .warned()
    .quick(),
    Mistake::new(
        "no DeferBatch in PrologFlags",
        |site| {
            let conf = site.etc("slurm.conf");
            site.change(&conf, "Alloc,Contain,DeferBatch", "Alloc,Contain");
            Ok(())
        },
        &["write instead: PrologFlags=Alloc,Contain,DeferBatch"],
        Fate::NotTried,
    )
    .warned(),
    in_file!(
        "a node with fewer GPUs than it has in gres.conf",
        "gres.conf",
        "half[0-3]",
        "half[0-1]",
        "half"
    ),
    in_file!(
        "a node with fewer GPUs than it has in slurm.conf",
        "slurm.conf",
        "gpu:half:4,shard:half:200,gpufrac:200",
        "gpu:half:2,shard:half:100,gpufrac:100",
        "Gres=gpu:half:4,shard:half:200,gpufrac:200"
    ),
    in_file!(
        "a node with more GPUs than it has in slurm.conf",
        "slurm.conf",
        "gpu:half:4,shard:half:200,gpufrac:200",
        "gpu:half:16,shard:half:800,gpufrac:800",
        "Gres=gpu:half:4,shard:half:200,gpufrac:200"
    ),
    in_file!(
        "the former counts in slurm.conf",
        "slurm.conf",
        "gpu:half:4,shard:half:200,gpufrac:200",
        "gpu:h100:2",
        "Gres=gpu:half:4,shard:half:200,gpufrac:200"
    ),
];

#[test]
#[ignore = "full: each mistake takes seconds"]
fn mistakes_in_slurms_files_are_named_and_lose_nothing() -> Result<(), LabError> {
    Site::start(false)?.make_all(MISTAKES, 1)
}
