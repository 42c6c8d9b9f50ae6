//! The removal of instances, and what the driver shows of them afterwards.

use std::thread::sleep;
use std::time::{Duration, Instant};

use gpufrac_nvml::codes;
use gpufrac_nvml::single::ComputeInstanceHandle;

use crate::driver::{Driver, Stop, named, said};
use crate::remains::Intent;
use crate::work::{Made, Work};

/// How long the pauses are between two looks at something that should change.
const PAUSE: Duration = Duration::from_millis(10);

impl<'s> Work<'_, 's> {
    /// Removes an instance, with its compute instance if that still stands: the driver may use what a handle of a
    /// destroyed one points to.
    pub fn remove(&self, made: &Made<'s>) -> Result<(), Stop> {
        if let Some(compute) = &made.compute
            && let Ok(ci) = self.compute_by_id(made.gi, compute.ci_id)?
        {
            self.until_done(made, || self.destroy_compute(made, ci))?;
        }
        self.until_done(made, || self.destroy_bare(made))
    }

    /// Repeats a removal until the driver does it.
    fn until_done(
        &self,
        made: &Made<'s>,
        mut remove: impl FnMut() -> Result<Result<(), u32>, Stop>,
    ) -> Result<(), Stop> {
        let begin = Instant::now();
        let mut first = None;
        loop {
            let done = remove()?;
            let first = *first.get_or_insert(done);
            let in_time = begin.elapsed() < self.pace.patience;
            if done.is_err() && in_time {
                self.go_on()?;
                sleep(PAUSE);
                continue;
            }
            let question = "an idle instance is removed at once";
            let name = self.place_name(made.profile_id, made.placement);
            self.check_instance(question, &name, "success (0)", said(&first));
            return match done {
                Ok(()) => Ok(()),
                Err(code) => {
                    let what = format!("{made}: {}; it", named(code));
                    Err(Stop::Stuck(what))
                }
            };
        }
    }

    /// Destroys a compute instance; NVML's code if the driver refuses.
    pub fn destroy_compute(
        &self,
        made: &Made<'s>,
        ci: ComputeInstanceHandle<'s>,
    ) -> Result<Result<(), u32>, Stop> {
        let when = self.when.get();
        let done = self.change("nvmlComputeInstanceDestroy", when, made, |calls| {
            calls.destroy_compute_instance(ci)
        })?;
        Ok(gone_is_done(done))
    }

    /// Destroys a GPU instance, and looks until it is gone; NVML's code if the driver refuses, IN_USE if the driver
    /// says that it is done and the instance stays.
    pub fn destroy_bare(&self, made: &Made<'s>) -> Result<Result<(), u32>, Stop> {
        let last = self.standing().len() == 1;
        let when = match (self.when.get(), last) {
            ("seven", _) => "seven",
            (_, true) => "last",
            (_, false) => "other",
        };
        let done = self.change("nvmlGpuInstanceDestroy", when, made, |calls| {
            calls.destroy_gpu_instance(made.gi)
        })?;
        let done = gone_is_done(done);
        if done.is_err() {
            return Ok(done);
        }
        let begin = Instant::now();
        let mut seen = self.still_seen(made)?;
        let at_once = seen.clone();
        while !seen.is_empty() && begin.elapsed() < self.pace.patience {
            self.go_on()?;
            sleep(PAUSE);
            seen = self.still_seen(made)?;
        }
        let name = self.place_name(made.profile_id, made.placement);
        let gone = |seen: &[&str]| {
            if seen.is_empty() {
                "gone".to_owned()
            } else {
                format!("seen {}", seen.join(", "))
            }
        };
        let question = "after the success of a destroy the instance is gone at once";
        self.check_instance(question, &name, "gone", gone(&at_once));
        if !at_once.is_empty() {
            let ms = begin.elapsed().as_millis();
            let value = format!("{}: {} after {ms} ms", name, gone(&seen));
            self.note("when a destroyed instance is gone", value);
        }
        if !seen.is_empty() {
            return Ok(Err(codes::IN_USE));
        }
        let place = (made.profile_id, made.placement);
        self.has_gone(place)?;
        Ok(Ok(()))
    }

    /// Where a destroyed instance is still seen.
    fn still_seen(&self, made: &Made<'s>) -> Result<Vec<&'static str>, Stop> {
        let mut seen = Vec::new();
        let folders = self.folders().unwrap_or_default();
        if folders.contains(&made.gi_id) {
            seen.push("in /proc");
        }
        let id = made.gi_id;
        let by_id = self.ask("nvmlDeviceGetGpuInstanceById", id, |calls| {
            calls.gpu_instance_by_id(id)
        })?;
        if by_id.is_ok() {
            seen.push("by its id");
        }
        if self
            .listed(made.profile_id)?
            .iter()
            .any(|it| it.gi_id == id)
        {
            seen.push("in the list");
        }
        Ok(seen)
    }
}

fn gone_is_done(done: Result<(), u32>) -> Result<(), u32> {
    match done {
        Err(codes::NOT_FOUND) => Ok(()),
        other => other,
    }
}

/// Removes the instances at the places of an intent, whatever the driver says to single calls. What remains.
pub fn clear(
    driver: &Driver<'_, '_>,
    intent: &Intent,
    patience: Duration,
) -> Result<Vec<String>, Stop> {
    driver.cleaning.set(true);
    let begin = Instant::now();
    loop {
        let mut left = Vec::new();
        for &(profile, placement) in &intent.places {
            left.extend(driver.clear_place(profile, placement)?);
        }
        if left.is_empty() || begin.elapsed() > patience {
            return Ok(left);
        }
        sleep(PAUSE);
    }
}
