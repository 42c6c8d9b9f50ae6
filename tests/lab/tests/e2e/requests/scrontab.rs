//! Jobs of scrontab.

use std::time::Duration;

use gpufrac_lab::{Lab, LabError};

use super::{counts, lines};
use crate::needs_slurm;
use crate::share::SITE;

/// Promise (users): cron jobs of scrontab.
#[test]
fn a_cron_job_gets_a_slice_each_time_it_runs() -> Result<(), LabError> {
    // Debian's package of 22.05 has no scrontab.
    needs_slurm(23, 2)?;
    let lab = Lab::builder()
        .slurm_conf_extra(&format!("ScronParameters=enable\n{SITE}"))
        .start()?;
    let user = &lab.users()[0];
    lab.gpusim(&lab.nodes()[0], &["manner", "random-uuids"])?;
    let work = lab.folder().work();
    let scrontab = |lines: &str| {
        lab.write_work("crontab", lines)?;
        lab.command("scrontab").user(user).args(["crontab"]).run()
    };
    let refused = scrontab("#SCRON --gres=gpufrac:1.5\n* * * * * true\n")?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("a fraction is at most 1 GPU; write"),
        "{refused:?}"
    );

    let taken = scrontab(&format!(
        "#SCRON --gres=gpufrac:0.2 --chdir={0} --output={0}/cron.out --open-mode=append\n\
         * * * * * echo F=$GPUFRAC_FRACTION C=$CUDA_VISIBLE_DEVICES\n",
        work.display()
    ))?
    .success()?;
    assert!(
        taken.stderr.contains("rounded up from 0.2 to 0.25"),
        "{taken:?}"
    );
    let jobs = lab.jobs()?;
    let job = jobs.first().expect("the cron job").id();
    assert_eq!(counts(&lab, job)?, "gpufrac:25,shard:25");
    let job = lab.job(job)?;
    let given = [job.field("MinCPUsNode"), job.field("MinMemoryNode")];
    assert_eq!(given, ["2", "4000M"], "{job:?}");
    // The job runs at each full minute.
    let output = lab.wait("it ran twice", Duration::from_secs(200), || {
        let output = std::fs::read_to_string(work.join("cron.out")).unwrap_or_default();
        Ok((output.lines().count() >= 2).then_some(output))
    })?;
    let mut slices = lines(&output, "F=0.25 C=MIG-");
    slices.dedup();
    assert!(slices.len() >= 2, "two runs, two slices: {output}");
    lab.command("scrontab").user(user).args(["-r"]).stdout()?;
    // Slurm forgets the job at once, even while its epilog still runs.
    lab.wait("its slice is gone", Duration::from_secs(60), || {
        Ok(lab.instances(&lab.nodes()[0])?.is_empty().then_some(()))
    })?;
    lab.wait("its lease is gone", Duration::from_secs(60), || {
        Ok(lab.leases(&lab.nodes()[0])?.is_empty().then_some(()))
    })?;
    lab.expect_nothing_left()
}
