//! Mistakes in gpufrac.toml, on one host or on all.

use gpufrac_lab::LabError;

use super::{Fate, Mistake, Site, replace};

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "another menu on a node than on slurmctld's host",
        |site| {
            let line = "partitions = [\"gpu\"]\n";
            site.change(
                &site.config(),
                line,
                &format!("{line}menu = [\"1/2\", \"1/8\"]\n"),
            );
            Ok(())
        },
        &["its pools differ from those of slurmctld", "`scp "],
        Fate::SliceOrNone,
    )
    .quick(),
    Mistake::new(
        "a menu that slurmctld has not read yet",
        |site| {
            let line = "partitions = [\"gpu\"]\n";
            site.change_everywhere(line, &format!("{line}menu = [\"1/2\", \"1/8\"]\n"));
            Ok(())
        },
        &[
            "its pools differ from those of slurmctld",
            "`scontrol reconfigure`",
        ],
        Fate::NotTried,
    )
    .quick(),
    Mistake::new(
        "an unknown key of [reaper] on a node",
        |site| {
            let text = std::fs::read_to_string(site.config()).expect("it is there");
            site.write(
                &site.config(),
                &format!("{text}\n[reaper]\nmoed = \"on\"\n"),
            );
            Ok(())
        },
        &["moed"],
        Fate::Slice,
    )
    .quick(),
    Mistake::new(
        "no gpufrac.toml on a node",
        |site| {
            site.remove(&site.config());
            Ok(())
        },
        &["reading"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a gpufrac.toml that everybody may write",
        |site| {
            site.set_mode(&site.config(), 0o666);
            Ok(())
        },
        &["only root may be able to change it", "chmod go-w"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a gpufrac.toml of an ordinary user",
        |site| {
            site.give_to_user(&site.config());
            Ok(())
        },
        &["only root may be able to change it", "`chown root:root "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a gpufrac.toml that is a link",
        |site| {
            let text = std::fs::read_to_string(site.config()).expect("it is there");
            let shared = site.etc("shared.toml");
            site.write(&shared, &text);
            site.remove(&site.config());
            std::os::unix::fs::symlink(shared, site.config()).expect("root may");
            Ok(())
        },
        &["link"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a gpufrac.toml as an editor of Windows writes it",
        |site| {
            let text = std::fs::read_to_string(site.config()).expect("it is there");
            site.write(
                &site.config(),
                &format!("\u{feff}{}", text.replace('\n', "\r\n")),
            );
            Ok(())
        },
        &[],
        Fate::Slice,
    ),
    Mistake::new(
        "a gpufrac.toml with an umlaut of Latin-1",
        |site| {
            let mut bytes = std::fs::read(site.config()).expect("it is there");
            site.keep(&site.config());
            bytes.extend(b"# Gr\xfc\xdfe\n");
            replace(&site.config(), &bytes, 0o644);
            Ok(())
        },
        &["UTF-8", "`iconv -f latin1 "],
        Fate::Slice,
    ),
    Mistake::new(
        "a gpufrac.toml of no bytes",
        |site| {
            site.write(&site.config(), "");
            Ok(())
        },
        &["version: missing"],
        Fate::Slice,
    ),
    Mistake::new(
        "a folder in the place of gpufrac.toml",
        |site| {
            site.remove(&site.config());
            std::fs::create_dir(site.config()).expect("root may");
            Ok(())
        },
        &["reading"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "two pools with the same GPUs",
        |site| {
            let text = std::fs::read_to_string(site.config()).expect("it is there");
            let (_, pool) = text.split_once("[pool.halves]").expect("the pool");
            site.change_everywhere(
                "[pool.halves]",
                &format!("[pool.more]{pool}\n[pool.halves]"),
            );
            site.reconfigure()
        },
        &["pool"],
        Fate::SliceOrNone,
    )
    .mended(|site| site.reconfigure()),
    Mistake::new(
        "a gpufrac.toml that slurmctld's user cannot read",
        |site| {
            site.set_mode(&site.etc("gpufrac.toml"), 0o600);
            site.set_mode(&site.config(), 0o600);
            site.reconfigure()
        },
        &["gpufrac.toml"],
        Fate::SliceOrNone,
    )
    .mended(|site| site.reconfigure()),
    Mistake::new(
        "another model in the pool",
        |site| {
            site.change(&site.config(), "gpu = \"H100-80\"", "gpu = \"A100-40\"");
            Ok(())
        },
        // One error for all GPUs with the same difference.
        &["gpufrac: GPU 0, 1 (", "set `gpu` of the pool to this model"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a node with GPUs that no pool names",
        |site| {
            let (first, second) = (&site.lab.nodes()[0], &site.lab.nodes()[1]);
            let both = format!("nodes = \"{first},{second}\"");
            site.change_everywhere(&both, &format!("nodes = \"{first}\""));
            site.reconfigure()
        },
        &["no pool"],
        Fate::SliceOrNone,
    )
    .mended(|site| site.reconfigure()),
    Mistake::new(
        "a node misspelt in a pool",
        |site| {
            let (first, second) = (&site.lab.nodes()[0], &site.lab.nodes()[1]);
            let both = format!("nodes = \"{first},{second}\"");
            site.change_everywhere(&both, &format!("nodes = \"{first},x{second}\""));
            site.reconfigure()
        },
        &["which Slurm does not know"],
        Fate::SliceOrNone,
    )
    .mended(|site| site.reconfigure()),
    Mistake::new(
        "users who request the former Type",
        |_| Ok(()),
        // There is no mistake on the host itself.
        &[],
        Fate::Refused("no GPU of this cluster has the Type \"h100\""),
    )
    .asked("--gres=gpu:h100:1")
    .quick(),
    Mistake::new(
        "a partition misspelt in a pool",
        |site| {
            site.change_everywhere("partitions = [\"gpu\"]", "partitions = [\"gppu\"]");
            site.reconfigure()
        },
        &["gppu"],
        Fate::SliceOrNone,
    )
    .mended(|site| site.reconfigure()),
];

#[test]
#[ignore = "full: each mistake takes seconds"]
fn mistakes_in_gpufrac_toml_are_named_and_lose_nothing() -> Result<(), LabError> {
    Site::start(false)?.make_all(MISTAKES, 1)
}
