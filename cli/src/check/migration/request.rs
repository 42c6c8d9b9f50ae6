//! The request for GPUs in a submit line, and in the counts of Slurm.

use gpufrac_core::request;

/// A request for GPUs by Slurm's own names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// As a user writes it: `--gres=gpu:h100:1`.
    pub text: String,
    /// The list of GRES that it means: `gpu:h100:1`.
    pub gres: String,
}

/// Options for GPUs; those whose value is a list of GRES, and those whose value lacks the name `gpu`.
const OPTIONS: [(&str, bool); 7] = [
    ("--gres", true),
    ("--tres-per-task", true),
    ("--gpus", false),
    ("-G", false),
    ("--gpus-per-node", false),
    ("--gpus-per-task", false),
    ("--gpus-per-socket", false),
];

impl Request {
    /// The request of an option; None for one that names no GPU of Slurm's, or names a fraction.
    pub fn of_option(option: &str, value: &str) -> Option<Request> {
        let (name, is_list) = OPTIONS.iter().find(|(name, _)| *name == option)?;
        // A user's text goes to root's terminal and into a mail.
        if !value.chars().all(|letter| letter.is_ascii_graphic()) {
            return None;
        }
        let gres = match is_list {
            true => value.to_owned(),
            false => {
                let items = value.split(',').map(|item| format!("gpu:{item}"));
                items.collect::<Vec<_>>().join(",")
            }
        };
        let items = gres.split(',').map(request::without_mark);
        let names_gpus = items.into_iter().any(|item| {
            let name = item.split([':', '=']).next().unwrap_or_default();
            ["gpu", "shard", "mps"]
                .iter()
                .any(|own| name.eq_ignore_ascii_case(own))
        });
        (names_gpus && !request::names_fraction(&gres)).then(|| Request {
            text: format!("{name}={value}").replacen("-G=", "-G ", 1),
            gres,
        })
    }

    /// The request in a submit line: its options up to the script or program. What stands in a script is not there.
    pub fn of_line(line: &str) -> Option<Request> {
        let mut words = line.split_whitespace().skip(1).peekable();
        let mut follows_option = false;
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                // A word behind an option may be its value, a second one is the program.
                if !follows_option {
                    return None;
                }
                follows_option = false;
                continue;
            }
            if word.starts_with("--wrap") {
                return None;
            }
            let (option, value) = match word.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None if word.len() > 2 && word.starts_with("-G") => ("-G", word.get(2..)),
                None => (word, words.peek().copied()),
            };
            if let Some(request) = value.and_then(|value| Request::of_option(option, value)) {
                return Some(request);
            }
            follows_option = !word.contains('=');
        }
        None
    }

    /// The request of a job for one node, by its submit line and by what accounting counted.
    pub fn of_job(line: &str, tres: &str) -> Option<Request> {
        let counted = Request::of_tres(tres);
        let Some(said) = Request::of_line(line) else {
            return counted;
        };
        let per_node = ["--gres=", "--gpus-per-node="];
        if per_node.iter().any(|option| said.text.starts_with(option)) {
            return Some(said);
        }
        let gres = counted.map_or(said.gres, |counted| counted.gres);
        Some(Request { gres, ..said })
    }

    /// The request by what accounting counted: `cpu=1,gres/gpu:h100=2,gres/gpu=2,node=2`, for all nodes together. Types
    /// say more than the sum.
    pub fn of_tres(tres: &str) -> Option<Request> {
        let items = tres
            .split(',')
            .filter_map(|item| item.trim().strip_prefix("gres/"));
        let items: Vec<(&str, &str)> = items.filter_map(|item| item.split_once('=')).collect();
        let of = |name: &str| {
            items
                .iter()
                .filter(|(own, _)| *own == name || own.starts_with(&format!("{name}:")))
                .max_by_key(|(own, _)| own.len())
        };
        let pairs = || {
            tres.split(',')
                .filter_map(|item| item.trim().split_once('='))
        };
        let nodes = pairs().find(|(name, _)| *name == "node");
        let nodes = nodes.and_then(|(_, count)| count.parse().ok());
        let named = ["gpu", "shard", "mps"].iter().filter_map(|name| of(name));
        let named: Vec<String> = named
            .map(|(name, count)| format!("{name}:{count}"))
            .collect();
        let is_fraction = items.iter().any(|(name, _)| request::names_fraction(name));
        let gres = on_node(&named.join(","), nodes.unwrap_or(1));
        (!named.is_empty() && !is_fraction).then(|| Request {
            text: format!("--gres={gres}"),
            gres,
        })
    }
}

/// Of a list of GRES for all nodes of a job the part of one; nodes whose GPUs differ in number show nothing better than
/// the sum.
pub fn on_node(gres: &str, nodes: u64) -> String {
    let part = |item: &str| {
        let (name, count) = item.rsplit_once([':', '='])?;
        let count: u64 = count.parse().ok()?;
        let divides = nodes > 0 && count.is_multiple_of(nodes);
        divides.then(|| format!("{name}:{}", count / nodes))
    };
    let items = gres.split(',');
    let items = items.map(|item| part(item).unwrap_or_else(|| item.to_owned()));
    items.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_submit_lines() {
        let text = |line: &str| Request::of_line(line).map(|it| it.text);
        for (line, expected) in [
            ("sbatch -n1 --gres=gpu:h100:1 job.sh", "--gres=gpu:h100:1"),
            ("sbatch -p gpu --gres gpu:2 job.sh", "--gres=gpu:2"),
            ("sbatch -G h100:1 job.sh", "-G h100:1"),
            ("srun -G2 --pty bash", "-G 2"),
            ("salloc --gpus-per-task=1", "--gpus-per-task=1"),
            ("sbatch --gres=mps:50 x", "--gres=mps:50"),
        ] {
            assert_eq!(text(line).as_deref(), Some(expected), "{line}");
        }
        for line in [
            "sbatch job.sh",
            "sbatch -n 4 job.sh --gpus 3",
            "srun --mem=4G python train.py --gpus=4",
            "sbatch --wrap run --gres=gpu:1",
            "sbatch --gres=gpufrac:0.25 x",
            "sbatch --gres=tmpdisk:5 x",
            "sbatch --gres=gpu:\u{1b}[2J x",
            "",
        ] {
            assert_eq!(text(line), None, "{line}");
        }
        assert_eq!(
            Request::of_line("srun -G h100:1").unwrap().gres,
            "gpu:h100:1"
        );
    }

    #[test]
    fn requests_for_all_nodes_are_divided_by_accounting() {
        let gres = |line: &str| {
            let tres = "cpu=4,gres/gpu:h100=8,gres/gpu=8,node=2";
            Request::of_job(line, tres).map(|it| (it.text, it.gres))
        };
        for (line, text, on_node) in [
            ("sbatch --gpus=8 x", "--gpus=8", "gpu:h100:4"),
            ("sbatch -G h100:8 x", "-G h100:8", "gpu:h100:4"),
            (
                "sbatch --gpus-per-task=1 x",
                "--gpus-per-task=1",
                "gpu:h100:4",
            ),
            (
                "sbatch --gpus-per-node=h100:4 x",
                "--gpus-per-node=h100:4",
                "gpu:h100:4",
            ),
            ("sbatch --gres=gpu:4 x", "--gres=gpu:4", "gpu:4"),
            ("sbatch x", "--gres=gpu:h100:4", "gpu:h100:4"),
        ] {
            assert_eq!(
                gres(line),
                Some((text.to_owned(), on_node.to_owned())),
                "{line}"
            );
        }
    }

    #[test]
    fn requests_of_counts() {
        let gres = |tres: &str| Request::of_tres(tres).map(|it| it.gres);
        assert_eq!(
            gres("cpu=1,gres/gpu:h100=2,gres/gpu=2,node=1").as_deref(),
            Some("gpu:h100:2")
        );
        assert_eq!(gres("cpu=1,gres/shard=4").as_deref(), Some("shard:4"));
        let of_nodes = |gpus, nodes| gres(&format!("cpu=16,gres/gpu={gpus},mem=64G,node={nodes}"));
        assert_eq!(of_nodes(8, 2).as_deref(), Some("gpu:4"));
        assert_eq!(of_nodes(3, 2).as_deref(), Some("gpu:3"));
        assert_eq!(of_nodes(3, 0).as_deref(), Some("gpu:3"));
        assert_eq!(gres("cpu=1,gres/gpufrac=25,gres/shard=25"), None);
        assert_eq!(gres("cpu=1,mem=1M"), None);
    }
}
