//! `cargo xtask demo`: shows the life of a fraction on a real cluster.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use gpufrac_lab::{JobId, Lab, User, stop_folder};

use crate::map::{Stand, draw};
use crate::picture;
use lab_tasks::series::One;
use xtask_front::setup;

/// Memory slices of the demo's GPUs.
const SLICES: u32 = 8;

#[derive(clap::Args)]
pub(crate) struct DemoArguments {
    /// Write the picture of README.md, the four jobs on their GPUs, into this folder
    #[arg(long, value_name = "FOLDER")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    slurm: One,
    /// Everything was built, as in tests
    #[arg(long, hide = true)]
    built: bool,
}

/// The GPUs are lent in pieces or whole.
const QUARTERS: &str = r#"
[pool.quarters]
mechanism = "mig"
layout = "uniform"
menu = ["1/4"]
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// The job runs until the demo has shown its slice; a busy machine needs time for this.
const JOB: &str = "\
#!/bin/sh
echo \"hello from job $SLURM_JOB_ID on $SLURMD_NODENAME\"
env | grep -E '^(CUDA_VISIBLE_DEVICES|GPUFRAC_(FRACTION|MECHANISM|MEMORY_MIB|PROFILE))' | sort
while [ ! -e go ]; do sleep 0.1; done
";

pub(crate) fn run(arguments: DemoArguments) -> Result<()> {
    if !arguments.built {
        setup::run(&arguments.slurm.packages())?;
    }
    let series = arguments.slurm.prepare()?;
    if !arguments.built {
        series.build()?;
    }
    let before = Instant::now();
    let folders = Arc::new(Mutex::new(Vec::new()));
    let stopped = Arc::clone(&folders);
    ctrlc::set_handler(move || {
        interrupted(&stopped.lock().unwrap_or_else(PoisonError::into_inner))
    })?;
    let start = |gpus, pools: Option<&str>| -> Result<Story> {
        let builder = Lab::builder()
            .quiet()
            .nodes(1)
            .node_prefix("gn")
            .gpus("H100-80", gpus);
        let builder = match pools {
            Some(pools) => builder.pools(pools),
            None => builder,
        };
        let lab = series.give(builder).start()?;
        let folder = lab.folder().root().to_path_buf();
        folders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(folder);
        Ok(Story {
            node: lab.nodes()[0].clone(),
            user: lab.users()[0].clone(),
            lab,
            gpus: gpus as usize,
            picture: arguments.picture.clone(),
        })
    };
    let story = start(2, None)?;
    story.tell()?;
    story.lab.stop()?;
    let story = start(4, Some(QUARTERS))?;
    story.four_gpus()?;
    story.lab.stop()?;
    println!(
        "\nThe clusters are stopped, their folders and control groups are removed. \
         That took {:.0} s.",
        before.elapsed().as_secs_f64()
    );
    println!("To play with one yourself: cargo xtask lab up");
    Ok(())
}

/// Cleans up after an interrupt.
fn interrupted(folders: &[PathBuf]) {
    eprintln!("\nstopping the cluster ...");
    let mut status = 130;
    for folder in folders.iter().filter(|folder| folder.exists()) {
        if let Err(error) = stop_folder(folder) {
            eprintln!("error: {error}");
            status = 1;
        }
    }
    std::process::exit(status);
}

struct Story {
    lab: Lab,
    node: String,
    user: User,
    gpus: usize,
    picture: Option<PathBuf>,
}

impl Story {
    fn tell(&self) -> Result<()> {
        self.cluster()?;
        self.one_job()?;
        self.four_jobs()?;
        self.refusal()?;
        self.end("5. Nothing is left")
    }

    /// A job of four GPUs waits for GPUs that pieces use, gets them and returns them.
    fn four_gpus(&self) -> Result<()> {
        chapter("6. Four GPUs for a job, which pieces used before");
        say(
            "Another cluster: a node with four H100 whose pool lends quarters and whole GPUs of the same GPUs, by demand.",
        );
        self.show("sinfo", &["-o", "%N %T %G"])?;
        self.lab.write_work("job.sh", JOB)?;
        self.lab
            .write_work("sleep.sh", "#!/bin/sh\nsleep infinity\n")?;
        let mut pieces = Vec::new();
        for _ in 0..6 {
            pieces.push((self.submit("0.25", "sleep.sh")?, "1/4"));
        }
        for (job, _) in &pieces {
            self.lab.wait_for_state(*job, &["RUNNING"])?;
        }
        let four = self.submit("4", "job.sh")?;
        self.waits(four)?;
        say("A job of four GPUs waits, as six quarters are in use on two of them:");
        self.show("squeue", &["-o", "%.5i %.9T %.12r %b"])?;
        self.draw(&pieces)?;
        let rest = pieces.split_off(4);
        self.cancel(&pieces)?;
        self.waits(four)?;
        say("Four quarters have ended. One GPU still has two, so the job waits on:");
        self.draw(&rest)?;
        self.cancel(&rest)?;
        self.lab.wait_for_state(four, &["RUNNING"])?;
        say(
            "The last piece has ended. The job has all four GPUs, each as an instance of the full size:",
        );
        let mut jobs = vec![(four, "4 GPUs")];
        self.draw(&jobs)?;
        let after = self.submit("0.25", "sleep.sh")?;
        self.waits(after)?;
        say("Nobody else gets a part of them now:");
        self.show("squeue", &["-o", "%.5i %.9T %.12r %b"])?;
        self.lab.write_work("go", "")?;
        self.lab.wait_for_end(four)?;
        say("The job has ended. Its own output:");
        for line in self.lab.output(four)?.lines() {
            println!("    | {line}");
        }
        self.lab.wait_for_state(after, &["RUNNING"])?;
        jobs.push((after, "1/4"));
        say("It returned its GPUs, and the next job has a quarter of one:");
        self.draw(&jobs)?;
        self.cancel(&jobs[1..])?;
        self.end("7. Nothing is left here either")
    }

    /// Waits until Slurm says why a job waits.
    fn waits(&self, job: JobId) -> Result<()> {
        let reasons = ["Resources", "Priority"];
        self.lab
            .wait("Slurm says why", Duration::from_secs(60), || {
                let job = self.lab.job(job)?;
                let is_said = reasons.contains(&job.field("Reason"));
                Ok((job.state() == "PENDING" && is_said).then_some(()))
            })?;
        Ok(())
    }

    fn cancel(&self, jobs: &[(JobId, &str)]) -> Result<()> {
        let ids: Vec<_> = jobs.iter().map(|(job, _)| job.to_string()).collect();
        println!("    $ scancel {}", ids.join(" "));
        let command = self.lab.command("scancel").user(&self.user);
        command.args(&ids).stdout()?;
        for (job, _) in jobs {
            self.lab.wait_for_end(*job)?;
        }
        Ok(())
    }

    fn cluster(&self) -> Result<()> {
        chapter("1. A cluster");
        say(
            "A real Slurm on this machine: a controller and one node with two simulated NVIDIA H100.",
        );
        self.show("sinfo", &["-o", "%N %T %G"])?;
        say(
            "Each H100 is two devices for Slurm, the halves of a GPU, with 50 units each (1 unit = 1 % of a GPU).",
        );
        say("No MIG instance exists yet. The GPUs by their memory slices:");
        self.draw(&[])
    }

    fn one_job(&self) -> Result<()> {
        chapter("2. A quarter of a GPU");
        say(&format!(
            "The user `{}` asks for a quarter:",
            self.user.name
        ));
        self.lab.write_work("job.sh", JOB)?;
        let job = self.submit("0.25", "job.sh")?;
        self.lab.wait_for_state(job, &["RUNNING"])?;
        self.show("squeue", &["-o", "%.5i %.8u %.9T %.7M %b"])?;
        say("What Slurm gave it:");
        let shown = self.lab.job(job)?;
        for field in ["JobState", "TRES", "TresPerNode", "GRES"] {
            if !shown.field(field).is_empty() {
                println!("    {field}={}", shown.field(field));
            }
        }
        say("Before the job's script started, the prolog made a MIG instance of that size:");
        self.draw(&[(job, "1/4")])?;
        let slice = self.lab.slice(&self.node, job)?;
        println!(
            "    {} {}",
            slice.lease.kind(),
            slice.instance.uuids.join(" ")
        );
        self.lab.write_work("go", "")?;
        self.lab.wait_for_end(job)?;
        say("The job has ended. Its own output:");
        for line in self.lab.output(job)?.lines() {
            println!("    | {line}");
        }
        say("And the epilog took the instance down:");
        self.draw(&[])
    }

    fn four_jobs(&self) -> Result<()> {
        chapter("3. Four jobs side by side");
        let mut jobs = Vec::new();
        for (fraction, name) in [
            ("0.5", "1/2"),
            ("0.25", "1/4"),
            ("0.25", "1/4"),
            ("0.125", "1/8"),
        ] {
            self.lab
                .write_work("sleep.sh", "#!/bin/sh\nsleep infinity\n")?;
            jobs.push((self.submit(fraction, "sleep.sh")?, name));
        }
        for (job, _) in &jobs {
            self.lab.wait_for_state(*job, &["RUNNING"])?;
        }
        say(
            "The half and the two quarters fill the first GPU side by side. An eighth more would be 1.125 GPUs: it goes to the second.",
        );
        self.draw(&jobs)?;
        if let Some(folder) = &self.picture {
            picture::write(folder, SLICES, &self.gpus(&jobs)?)?;
        }
        self.cancel(&jobs)
    }

    fn refusal(&self) -> Result<()> {
        chapter("4. Rounded, refused");
        say("Sizes that the GPU cannot make are rounded up, and the user is told:");
        self.attempt("0.2")?;
        self.lab.wait_until_empty(Duration::from_secs(30))?;
        say("What cannot be given at all is refused, with what to write instead:");
        self.attempt("1.5")
    }

    fn end(&self, title: &str) -> Result<()> {
        chapter(title);
        self.lab.wait_until_empty(Duration::from_secs(30))?;
        self.lab.expect_nothing_left()?;
        self.draw(&[])?;
        say("No job, no lease, no MIG instance; the node is ready for more:");
        self.show("sinfo", &["-o", "%N %T"])
    }

    /// Runs sbatch as a user would type it.
    fn submit(&self, fraction: &str, script: &str) -> Result<JobId> {
        let gres = format!("--gres=gpufrac:{fraction}");
        println!("    $ sbatch {gres} {script}");
        let job = self.lab.sbatch(&self.user, &[&gres, script])?;
        println!("    Submitted batch job {job}");
        Ok(job)
    }

    fn attempt(&self, fraction: &str) -> Result<()> {
        let gres = format!("--gres=gpufrac:{fraction}");
        println!("    $ sbatch {gres} --wrap true");
        let command = self.lab.command("sbatch").user(&self.user);
        let outcome = command.args([&gres, "--wrap", "true"]).run()?;
        for line in outcome.stderr.lines().chain(outcome.stdout.lines()) {
            println!("    {line}");
        }
        Ok(())
    }

    fn show(&self, program: &str, args: &[&str]) -> Result<()> {
        let quoted: Vec<_> = args.iter().map(|arg| quote(arg)).collect();
        println!("    $ {program} {}", quoted.join(" "));
        let text = self.lab.command(program).args(args).stdout()?;
        for line in text.lines() {
            println!("    {line}");
        }
        Ok(())
    }

    fn draw(&self, jobs: &[(JobId, &str)]) -> Result<()> {
        println!();
        for (gpu, stands) in self.gpus(jobs)?.iter().enumerate() {
            println!("{}", draw(&format!("GPU {gpu}"), SLICES, stands));
        }
        Ok(())
    }

    /// The simulator's instances of each GPU, each with the job of its lease.
    fn gpus(&self, jobs: &[(JobId, &str)]) -> Result<Vec<Vec<Stand>>> {
        let instances = self.lab.instances(&self.node)?;
        let leases = self.lab.leases(&self.node)?;
        let stand = |gpu, start, size| {
            let lease = leases.iter().find(|lease| {
                let mig = lease.slice.mig();
                lease.slice.gpu_index.position() == gpu
                    && mig.is_some_and(|mig| u32::from(mig.placement.start) == start)
            });
            let Some(lease) = lease else {
                return (start, size, vec!["no lease".to_owned()]);
            };
            let job = lease.job_id;
            let fraction = jobs.iter().find(|(id, _)| *id == job);
            let fraction = fraction.map_or("", |(_, fraction)| fraction);
            let labels = vec![
                format!("job {job}: {fraction} {}", lease.kind()),
                format!("{job}: {fraction}"),
            ];
            (start, size, labels)
        };
        let of_gpu = |gpu| {
            let own = instances.iter().filter(|instance| instance.gpu == gpu);
            own.map(|instance| stand(gpu, instance.start, instance.size))
                .collect()
        };
        Ok((0..self.gpus).map(of_gpu).collect())
    }
}

/// The word with shell quotes.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=:./,".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

fn chapter(title: &str) {
    println!("\n== {title}");
}

fn say(words: &str) {
    println!("\n  {words}");
}
