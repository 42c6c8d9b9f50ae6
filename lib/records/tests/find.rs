//! The records of a job are found in the folders of records.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::path::PathBuf;

use gpufrac_core::ids::JobId;
use gpufrac_records::evidence::Record;
use gpufrac_records::find::{FindError, find};
use test_examples::evidence::record;

struct World {
    _keep: tempfile::TempDir,
    places: Vec<PathBuf>,
}

impl World {
    fn new() -> World {
        let keep = tempfile::tempdir().unwrap();
        let places = ["jobs", "kept", "records", "absent"];
        let places = places.map(|name| keep.path().join(name));
        for place in &places[..3] {
            std::fs::create_dir(place).unwrap();
        }
        World {
            places: places.to_vec(),
            _keep: keep,
        }
    }

    fn write(&self, place: usize, name: &str, text: &str) {
        std::fs::write(self.places[place].join(name), text).unwrap();
    }

    fn put(&self, place: usize, name: &str, record: &Record) {
        self.write(place, name, &serde_json::to_string(record).unwrap());
    }
}

#[test]
fn copies_are_one_and_the_longest() {
    let world = World::new();
    let whole = record();
    let mut early = whole.clone();
    early.events.truncate(2);
    early.ended_ms = None;
    let mut elsewhere = whole.clone();
    elsewhere.node = "gn08".to_owned();
    elsewhere.created_unix -= 5;
    let mut again = whole.clone();
    again.created_unix += 900;
    world.put(0, "4242.json", &again);
    world.put(1, "4242-1795000000.json", &early);
    world.put(2, "4242-gn07-1795000000.json", &whole);
    world.put(2, "4242-gn08-1794999995.json", &elsewhere);
    // A record of another job.
    world.write(2, "42421-gn08-1.json", "{");
    world.write(2, ".4242-gn08-1.json.tmp", "{");
    let found = find(JobId(4242), &world.places);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    assert_eq!(found.records, [elsewhere, whole, again]);
}

#[test]
fn unreadable_records_are_named_and_the_others_shown() {
    let world = World::new();
    world.put(1, "4242-1.json", &record());
    world.write(1, "4242-2.json", "{\"version\":2,\"new\":true}");
    world.write(1, "4242-3.json", "{\"version\":1");
    let mut other = record();
    other.job = JobId(1);
    world.put(1, "4242-4.json", &other);
    std::fs::create_dir(world.places[1].join("4242-5.json")).unwrap();
    let found = find(JobId(4242), &world.places);
    assert_eq!(found.records, [record()]);
    let said: Vec<String> = found.problems.iter().map(FindError::to_string).collect();
    let wanted = [
        "4242-2.json` is of version 2, this gpufrac reads version 1",
        "4242-3.json` is damaged: ",
        "4242-4.json` is damaged: it is of job 1",
        "reading `",
    ];
    assert_eq!(said.len(), wanted.len(), "{said:?}");
    for (said, wanted) in said.iter().zip(wanted) {
        assert!(said.contains(wanted), "{said}");
    }
}
