//! The lines of a node's file of usage records.

use serde::{Deserialize, Serialize};

use super::{Ended, Full, GpuTime, SliceKey, UsageRecord, VERSION};

/// One line of `usage.jsonl`.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// A slice that a job held; a line without `kind`, as in version 1.
    Slice(Box<UsageRecord>),
    /// Why a slice ended, where that became known after its record was written, and when it ended, in seconds since
    /// 1970: `"kind":"end"`. With what the slice lacked, where its job failed with a full slice.
    End(SliceKey, Ended, u64, Option<Full>),
    /// A GPU that was there: `"kind":"gpu"`.
    Gpu(GpuTime),
}

/// Why a line is no record.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// A line is damaged, for example after a full disk. It is skipped.
    /// Cure: Nothing; sacct still has the job.
    #[error("the line is not a usage record: {0}")]
    Json(#[from] serde_json::Error),
    /// The node has a newer gpufrac than this host.
    /// Cure: Upgrade gpufrac on this host.
    #[error("a newer gpufrac wrote the line (version {0}; this build reads 1 to {VERSION})")]
    Version(u32),
}

/// How each line with a kind begins: told from other lines without parsing them twice.
const WITH_KIND: &str = "{\"kind\":";

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Other {
    End {
        version: u32,
        #[serde(flatten)]
        key: SliceKey,
        ended: Ended,
        end: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        full: Option<Full>,
    },
    Gpu {
        version: u32,
        #[serde(flatten)]
        gpu: GpuTime,
    },
}

impl Line {
    /// Reads a line, without its end. Errors: when it is torn, no record, or of a newer build.
    pub fn parse(text: &str) -> Result<Line, LineError> {
        let (version, line) = if !text.starts_with(WITH_KIND) {
            let record: UsageRecord = serde_json::from_str(text)?;
            (record.version, Line::Slice(Box::new(record)))
        } else {
            match serde_json::from_str(text)? {
                Other::End {
                    version,
                    key,
                    ended,
                    end,
                    full,
                } => (version, Line::End(key, ended, end, full)),
                Other::Gpu { version, gpu } => (version, Line::Gpu(gpu)),
            }
        };
        if version <= VERSION { Ok(line) } else { Err(LineError::Version(version)) }
    }

    /// The line, with its end. Errors: when a value has no form in JSON.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        let version = VERSION;
        let mut text = match self {
            Line::Slice(record) => serde_json::to_string(record),
            Line::End(key, ended, end, full) => serde_json::to_string(&Other::End {
                version,
                key: key.clone(),
                ended: *ended,
                end: *end,
                full: full.clone(),
            }),
            Line::Gpu(gpu) => serde_json::to_string(&Other::Gpu {
                version,
                gpu: gpu.clone(),
            }),
        }?;
        text.push('\n');
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::BootSpan;
    use gpufrac_core::ids::JobId;

    const VERSION_1: &str = r#"{"version":1,"job":7,"restart_count":0,"user":"ann","uid":1001,"account":null,"partition":"gpu","node":"n1","pool":"p","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-1","start":1000,"end":1060,"seconds":60}"#;

    /// Promise (admins): records of version 1 are read.
    #[test]
    fn a_record_of_version_1_is_read_without_use() {
        let Line::Slice(record) = Line::parse(VERSION_1).unwrap() else {
            panic!("no slice");
        };
        assert_eq!((record.seconds, record.slice), (60, 0));
        assert_eq!((record.used, record.ended), (None, None));
    }

    #[test]
    fn each_kind_of_line_is_read_as_it_was_written() {
        let key = SliceKey {
            job: JobId(7),
            slice: 1,
            restart_count: 2,
            start: 1000,
            node: "n1".to_owned(),
        };
        let gpu = GpuTime {
            node: "n1".to_owned(),
            gpu_uuid: "GPU-1".to_owned(),
            pool: "p".to_owned(),
            from: 1,
            until: 2,
            boot: BootSpan {
                id: "b".to_owned(),
                from: 11,
                until: 12,
            },
            devices: vec![(0, 50), (1, 50)],
            menu: vec![13, 25, 50],
        };
        let full = Full {
            used_mib: 20_000,
            larger: None,
        };
        let slice = Line::parse(VERSION_1).unwrap();
        for line in [
            slice,
            Line::End(key.clone(), Ended::NodeFailure, 1060, None),
            Line::End(key, Ended::Done, 1060, Some(full)),
            Line::Gpu(gpu),
        ] {
            let text = line.to_text().unwrap();
            assert!(text.ends_with("}\n"));
            assert_eq!(Line::parse(text.trim_end()).unwrap(), line, "{text}");
        }
    }

    #[test]
    fn a_line_of_a_newer_build_and_a_torn_line_are_refused() {
        let newer = VERSION_1.replace("\"version\":1", "\"version\":9");
        let error = Line::parse(&newer).unwrap_err().to_string();
        assert!(error.contains("version 9"), "{error}");
        for end in 0..VERSION_1.len() {
            assert!(Line::parse(&VERSION_1[..end]).is_err());
        }
    }
}
