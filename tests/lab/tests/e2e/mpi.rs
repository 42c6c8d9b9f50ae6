//! Ranks of Open MPI and MPICH, of Debian 12, on two nodes: each has a slice of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpufrac_lab::{Lab, LabError};

use crate::per_task::{all_different, words};
use crate::runtimes::unpack;
use crate::since;

/// The page with the wrapper for mpirun.
const PAGE: &str = include_str!("../../../../docs/user/frameworks.md");

const OPEN_MPI: [&str; 8] = [
    "openmpi-bin",
    "openmpi-common",
    "libopenmpi3",
    "libopenmpi-dev",
    "libpmix2",
    "libevent-core-2.1-7",
    "libevent-pthreads-2.1-7",
    "libhwloc15",
];
const MPICH: [&str; 6] = [
    "mpich",
    "libmpich12",
    "libmpich-dev",
    "libhwloc15",
    "libucx0",
    // mpirun reads Slurm's lists of nodes with it.
    "libslurm38",
];

/// A lab with two nodes, and the size of a job: from 23.11 on each node has two ranks with a slice each, before one.
struct World {
    lab: Lab,
    size: &'static [&'static str],
    ranks: usize,
}

impl World {
    fn start() -> Result<World, LabError> {
        // `gpufrac env` of a user reads what the daemon shows.
        let lab = Lab::builder()
            .nodes(2)
            .reaper(crate::MEASURES_ONLY)
            .start()?;
        let wrapper = PAGE.split("```bash\n");
        let wrapper = wrapper.filter_map(|block| block.split("```").next());
        let wrapper = wrapper.filter(|block| block.starts_with("#!/bin/bash"));
        lab.write_work("own-slice", wrapper.last().expect("the wrapper"))?;
        let tasks = since(23, 11)?;
        Ok(World {
            lab,
            size: if tasks {
                &[
                    "-N2",
                    "-n4",
                    "--ntasks-per-node=2",
                    "--tres-per-task=gres/gpufrac:0.25",
                ]
            } else {
                &["-N2", "-n2", "--gres=gpufrac:0.25"]
            },
            ranks: if tasks { 4 } else { 2 },
        })
    }

    /// Compiles the program of a rank.
    fn compile(&self, include: &Path, libraries: &Path, library: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/mpi_rank.c");
        let program = self.lab.folder().work().join("rank");
        let mut gcc = Command::new("gcc");
        gcc.arg(source).arg("-o").arg(&program);
        gcc.arg("-I")
            .arg(include)
            .arg("-L")
            .arg(libraries)
            .arg(library);
        gcc.arg("-Wl,--unresolved-symbols=ignore-in-shared-libs");
        let output = gcc.output().expect("gcc");
        assert!(output.status.success(), "{output:?}");
        program
    }

    /// The output of a job with these commands, and that of each of them.
    fn run(&self, environment: &str, commands: &[&str]) -> Result<Vec<String>, LabError> {
        let commands = commands.join("; echo ==; ");
        let script = format!("#!/bin/bash\nexport TMPDIR=$PWD {environment}\n{commands}\n");
        let script = self.lab.write_work("ranks.sh", &script)?;
        let script = script.display().to_string();
        let job = self
            .lab
            .sbatch(&self.lab.users()[0], &[self.size, &[&script]].concat())?;
        let ended = self.lab.wait_for_end(job)?;
        let output = self.lab.output(job)?;
        assert_eq!(ended.state(), "COMPLETED", "{output}");
        let parts: Vec<String> = output.split("==\n").map(str::to_owned).collect();
        for part in &parts {
            let sum = (0..self.ranks).sum::<usize>().to_string();
            assert_eq!(words(part, "SUM"), vec![sum; self.ranks], "{output}");
        }
        Ok(parts)
    }

    fn each_has_its_own(&self, output: &str) {
        assert_eq!(all_different(output).len(), self.ranks, "{output}");
        assert_eq!(words(output, "F"), vec!["0.25"; self.ranks], "{output}");
    }

    /// Whether steps start with pmix: Debian's Slurm may have the plugin without the library that it loads.
    fn has_pmix(&self) -> Result<bool, LabError> {
        let step = ["--mpi=pmix", "-n1", "true"];
        let tried = self.lab.command("srun").args(step).run()?;
        Ok(tried.status.success())
    }
}

fn different(output: &str, name: &str) -> usize {
    words(output, name)
        .into_iter()
        .collect::<BTreeSet<_>>()
        .len()
}

/// Promise (users): each rank of Open MPI and of MPICH has a slice of its own, on several nodes: by `srun --mpi`, and
/// by `mpirun` with the wrapper of frameworks.md.
/// With `ranks_of_mpich_have_their_own_slices`.
#[test]
fn ranks_of_open_mpi_have_their_own_slices() -> Result<(), LabError> {
    let folder = test_seed::needed(unpack("bookworm", "openmpi", &OPEN_MPI)).join("usr");
    let world = World::start()?;
    let libraries = folder.join("lib/x86_64-linux-gnu");
    let (home, own) = (folder.display(), libraries.join("openmpi"));
    world.compile(&own.join("include"), &own.join("lib"), "-lmpi");
    let own = own.display();
    // Both nodes are this machine, so that ranks of different nodes must not share memory by its name.
    let environment = format!(
        "OPAL_PREFIX={home} OPAL_LIBDIR={own}/lib OPAL_SYSCONFDIR={home}/../etc PATH={home}/bin:$PATH \
         LD_LIBRARY_PATH={}:{own}/lib PMIX_MCA_pcompress_base_silence_warning=1 OMPI_MCA_btl=tcp,self \
         OMPI_MCA_plm_rsh_agent=/bin/false OMPI_MCA_mca_base_component_show_load_errors=0",
        libraries.display()
    );
    let mut commands = vec![
        "mpirun.openmpi ./rank",
        "mpirun.openmpi bash ./own-slice ./rank",
    ];
    if world.has_pmix()? {
        commands.push("srun --mpi=pmix ./rank");
    }
    let parts = world.run(&environment, &commands)?;
    // mpirun starts one task on each node, and that one has one slice.
    assert_eq!(
        (different(&parts[0], "N"), different(&parts[0], "CUDA")),
        (2, 2),
        "{parts:?}"
    );
    for part in &parts[1..] {
        world.each_has_its_own(part);
    }
    world.lab.expect_nothing_left()
}

#[test]
fn ranks_of_mpich_have_their_own_slices() -> Result<(), LabError> {
    let folder = test_seed::needed(unpack("bookworm", "mpich", &MPICH)).join("usr");
    let world = World::start()?;
    let libraries = folder.join("lib/x86_64-linux-gnu");
    let include = folder.join("include/x86_64-linux-gnu/mpich");
    world.compile(&include, &libraries, "-lmpich");
    let environment = format!(
        "PATH={}/bin:$PATH LD_LIBRARY_PATH={}",
        folder.display(),
        libraries.display()
    );
    let commands = [
        "mpirun.mpich ./rank",
        "mpirun.mpich -genvnone bash ./own-slice ./rank",
        "srun --mpi=pmi2 ./rank",
    ];
    let parts = world.run(&environment, &commands)?;
    // All ranks have the variables of the node where mpirun runs.
    assert_eq!(different(&parts[0], "N"), 1, "{parts:?}");
    for part in &parts[1..] {
        world.each_has_its_own(part);
    }
    world.lab.expect_nothing_left()
}
