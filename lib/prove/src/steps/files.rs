//! The device nodes of capabilities: their owner and mode before and after nvidia-modprobe, and after gpufrac took
//! them.

use std::process::{Command, Stdio};

use gpufrac_core::ids::UserId;
use gpufrac_host::files::{DeviceNumber, RootDir};

use crate::driver::Stop;
use crate::remains::{self, NodeState};
use crate::work::{Made, Work};

/// The program that makes device nodes, below `driver_root`. Any user can start it.
const MODPROBE: &str = "usr/bin/nvidia-modprobe";
/// A user without processes (`nobody`).
const NOBODY: UserId = UserId(65534);
/// A mark that gpufrac could write (`lib/node/src/gpu/instance_files.rs`).
const MARK: u32 = 12_345;
/// The mode of a node that gpufrac gave to a user (`lib/node/src/gpu/instance_files.rs`).
const OWN_MODE: u32 = 0o400;

fn failed(error: impl std::fmt::Display) -> Stop {
    Stop::Failed(error.to_string())
}

pub fn files(work: &Work<'_, '_>) -> Result<(), Stop> {
    let Some(made) = work.make_smallest()? else {
        return Ok(());
    };
    let found = check_device_node(work, &made);
    let removed = work.remove(&made).and_then(|()| without_mark(work, &made));
    let restored = remains::restore_nodes(&work.driver_root, &work.nodes_before());
    found?;
    removed?;
    restored.map_err(failed)?;
    work.only_own()
}

fn text(node: Option<NodeState>) -> String {
    match node {
        None => "none".to_owned(),
        Some(NodeState { owner: 0, mode, .. }) => format!("root {mode:04o}"),
        Some(NodeState { owner, mode, .. }) => format!("user {owner} {mode:04o}"),
    }
}

/// The number in a capability's `DeviceFileModify`.
fn mark(work: &Work<'_, '_>, made: &Made<'_>) -> String {
    let gpu = work.gpu.minor;
    let declared = work.caps.declared(gpu, made.gi_id, None);
    declared.map_or_else(|| "none".to_owned(), |it| it.modify.to_string())
}

/// A new instance at the same place.
fn without_mark(work: &Work<'_, '_>, before: &Made<'_>) -> Result<(), Stop> {
    let Some(again) = work.make(before.profile_id, before.placement)? else {
        return Ok(());
    };
    let question = "a new instance at the place of a marked one has no mark";
    work.check(question, "", 1, mark(work, &again));
    work.remove(&again)
}

fn check_device_node(work: &Work<'_, '_>, made: &Made<'_>) -> Result<(), Stop> {
    let (gpu, caps) = (work.gpu.minor, &work.caps);
    let Some(declared) = caps.declared(gpu, made.gi_id, None) else {
        work.not_measured(
            "device nodes of capabilities",
            "/proc has no file of the capability",
        );
        return Ok(());
    };
    let minor = declared.minor;
    let now = || remains::node(&work.driver_root, minor);
    work.note("the device node of a new instance", text(now()));
    let access = caps.folder_of(gpu, made.gi_id, None).join("access");
    let program = work.driver_root.join(MODPROBE);
    let modprobe = || {
        let mut command = Command::new(&program);
        command.arg("-f").arg(&access).stdin(Stdio::null());
        let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    let has_program = program.exists();
    if has_program && modprobe() {
        let question = "the device node after nvidia-modprobe";
        work.check(question, "", "root 0444", text(now()));
    } else {
        let reason = if has_program {
            "nvidia-modprobe failed"
        } else {
            "there is no nvidia-modprobe"
        };
        work.not_measured("the device node after nvidia-modprobe", reason);
    }
    let folder = RootDir::open(&caps.folder_of(gpu, made.gi_id, None)).map_err(failed)?;
    let line = format!("DeviceFileModify: {MARK}\n");
    folder.write_command("access", &line).map_err(failed)?;
    work.check(
        "the driver keeps a mark on a capability",
        "",
        MARK,
        mark(work, made),
    );
    let major = caps.major("nvidia-caps").map_err(failed)?;
    let folder = work.driver_root.join("dev/nvidia-caps");
    let (nodes, _) = RootDir::create(&folder, 0o755).map_err(failed)?;
    let number = DeviceNumber { major, minor };
    nodes
        .ensure_device(&remains::name_of(minor), number, NOBODY, OWN_MODE)
        .map_err(failed)?;
    let own = text(now());
    if let Some(compute) = &made.compute {
        let uuid = compute.uuid.clone();
        let asked = work.ask("nvmlDeviceGetHandleByUUID", "MIG", |calls| {
            calls.by_uuid(&uuid)
        })?;
        let _ = asked.map(|mig| work.gpu.calls().memory(mig));
    }
    let question = "a node that gpufrac gave to a user stays so";
    work.check(
        question,
        "after a question of root's to NVML",
        &own,
        text(now()),
    );
    if has_program && modprobe() {
        work.check(question, "after nvidia-modprobe", &own, text(now()));
    }
    Ok(())
}
