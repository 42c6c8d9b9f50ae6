//! Random requests: texts from a grammar of valid and nearly valid forms, then with changed bytes.

use std::fmt;

use test_seed::Dice;

mod collision;

pub(crate) use collision::type_id;

/// The options that name GRES.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Field {
    Node,
    Job,
    Socket,
    Task,
}

impl Field {
    /// In the order of `reader.c`.
    pub(crate) const ALL: [Field; 4] = [Field::Node, Field::Job, Field::Socket, Field::Task];
}

/// The texts of a request, as bytes, because Slurm accepts any byte except NUL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Texts([Option<Vec<u8>>; 4]);

impl Texts {
    pub(crate) fn get(&self, field: Field) -> Option<&[u8]> {
        self.0[field as usize].as_deref()
    }

    pub(crate) fn set(&mut self, field: Field, text: Option<Vec<u8>>) {
        self.0[field as usize] = text;
    }

    /// The text as a C program passes it, from which Rust code makes a string.
    pub(crate) fn lossy(&self, field: Field) -> Option<String> {
        self.get(field)
            .map(|text| String::from_utf8_lossy(text).into_owned())
    }
}

/// The request of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The earlier request of a pending job, if this is an update.
    pub(crate) before: Option<Texts>,
    pub(crate) texts: Texts,
    pub(crate) partitions: Option<&'static str>,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |f: &mut fmt::Formatter<'_>, texts: &Texts| {
            Field::ALL.into_iter().try_for_each(|field| {
                let text = texts.get(field).map(<[u8]>::escape_ascii);
                text.map_or(Ok(()), |text| write!(f, " {field:?}='{text}'"))
            })
        };
        write!(f, "partition={}", self.partitions.unwrap_or("-"))?;
        show(f, &self.texts)?;
        match &self.before {
            Some(before) => {
                f.write_str(" as an update of")?;
                show(f, before)
            }
            None => Ok(()),
        }
    }
}

/// Attacks that were found earlier, and similar texts; `@` stands for the mark of the series.
const KNOWN: [&str; 37] = [
    "@gpufrac:50,@shard:50,x@shard:1,x@gpufrac:1",
    "@gpu:whole:1,@gpufrac:100,x@gpu:whole:1",
    "x@shard:1,zgpufrac:1",
    "@gpufrac:50,@shard:50,@shard:1,@gpufrac:1",
    "@gpu:t4:1,zgpufrac:1",
    "@shard:18014398509481985k,@gpufrac:1",
    "@shard:18446744073709551566,@gpufrac:50",
    "@shard:-50,@gpufrac:50",
    "@gpufrac:25,@shard:k",
    "@gpufrac:25,@shard:25,@shard:half:k",
    "@gpufrac:25,@shard:25kb",
    "@gpufrac:25,@shard=25",
    "@gpufrac:25,@shard:half=25",
    "@gpufrac:25,@shard:half:1=25",
    "@gpu:a:b=1",
    "@gpu:1,@gpu:0",
    "gresgpu:1",
    "@gpu,@gpu:half",
    "@@shard:1",
    "gpufrac:0.25,@tmpdisk:1",
    "",
    ",,",
    // Types that Slurm takes for `half`, `whole` and none.
    "@gpu:x063x063x:1",
    "@gpu:xhold:1",
    "@gpu:VUUUVUUUTUUU:1",
    "@shard:half:1,@shard:x063x063x:50",
    // The mark of the other series, or none.
    "gres:gpu:1",
    "gres:gpufrac:1",
    "gres/shard:1",
    "shard:1,gpu:1",
    // Items that end the list for Slurm.
    "gres/5,@gpufrac:0.25",
    "gres:8,gpufrac:0.25",
    "gres:8",
    // Texts that begin like numbers.
    "@shard:5b,@gpufrac:5",
    "@gpu:-0",
    "@gpu:::1",
    "@gpu::=1",
];

/// A pending job, and updates of it.
const KNOWN_UPDATES: [(&str, &str); 8] = [
    ("@gpufrac:50,@shard:50", ""),
    ("@gpufrac:50,@shard:50", "@tmpdisk:1"),
    ("@gpufrac:50,@shard:50", "5"),
    ("@gpufrac:50,@shard:50", "@shard:1"),
    ("@gpufrac:50,@shard:50", "@gpufrac:25,@shard:half:25"),
    ("@gpu:whole:1,@gpufrac:100", "@gpufrac:25,@shard:25"),
    ("@gpufrac:25,@shard:half:25", "@gpufrac:30,@shard:mps:30"),
    ("license/a:1", "@gpufrac:25,@shard:25"),
];

const PARTITIONS: [Option<&str>; 11] = [
    None,
    Some("gpu"),
    Some("raw"),
    Some("raw"),
    Some("slices"),
    Some("mps"),
    Some("mixed"),
    Some("time"),
    Some("preset"),
    Some("gpu,mps"),
    Some("elsewhere"),
];

const NAMES: [&str; 22] = [
    "gpufrac", "gpufrac", "gpufrac", "shard", "shard", "shard", "shard", "gpu", "gpu", "gpu",
    "xgpufrac", "zgpufrac", "gpufracs", "myshard", "gpus", "GPU", "Shard", "GpuFrac", "tmpdisk",
    "none", "mps", "",
];

const TYPES: [&str; 25] = [
    "half",
    "half",
    "whole",
    "slices",
    "mps",
    "timeslice",
    "h100",
    "2080ti",
    "4090",
    "1g.5gb",
    "a100_1g.5gb+me",
    "HALF",
    "gpufrac",
    "shard",
    "mig",
    "percent",
    "k",
    "M",
    "kib",
    "1",
    "0.25",
    "",
    "a:b",
    "gres",
    "none",
];

const COUNTS: [&str; 44] = [
    "1",
    "1",
    "1",
    "2",
    "10",
    "25",
    "25",
    "50",
    "50",
    "100",
    "0",
    "00",
    "025",
    "-1",
    "+25",
    " 25",
    "25 ",
    "\t25",
    "-50",
    "25k",
    "1K",
    "1kb",
    "1kib",
    "2m",
    "1G",
    "1t",
    "9p",
    "10GB",
    "25x",
    "0x19",
    "2e1",
    "0.25",
    "0.25",
    ".5",
    "1.0",
    "50%",
    "1/4",
    "",
    "18446744073709551615",
    "18446744073709551616",
    "18446744073709551641",
    "18014398509481984k",
    "18014398509481985k",
    "9223372036854775808",
];

/// Texts that a mutation inserts.
const TOKENS: [&str; 21] = [
    "gres", "gres:", "gres/", "gres=", "Gres/", "gpu", "shard", "gpufrac", "half", ",", ":", "=",
    "/", "0", "1", "k", " ", "\n", "-", "\u{e9}", ".",
];

/// Writes requests for one series.
pub(crate) struct Writer {
    dice: Dice,
    mark: &'static str,
    /// Types whose number equals that of a pool's Type.
    alike: Vec<String>,
}

impl Writer {
    pub(crate) fn new(seed: u64, slash: bool) -> Self {
        let mut dice = Dice::new(seed);
        let alike = ["half", "whole", "mps", "timeslice"]
            .into_iter()
            .flat_map(|name| (0..4).map(|_| name).collect::<Vec<_>>())
            .map(|name| collision::alike(&mut dice, name))
            .collect();
        Self {
            dice,
            mark: if slash { "gres/" } else { "gres:" },
            alike,
        }
    }

    /// The known requests, in partitions with and without rules.
    pub(crate) fn known(&self) -> Vec<Request> {
        let node = |text: &str| {
            let mut texts = Texts::default();
            texts.set(Field::Node, Some(text.replace('@', self.mark).into_bytes()));
            texts
        };
        let of = |before: Option<&str>, text: &str, partition| Request {
            before: before.map(node),
            texts: node(text),
            partitions: Some(partition),
        };
        let partitions = ["raw", "gpu", "preset", "mixed"].into_iter();
        let all = partitions.flat_map(|partition| {
            let submitted = KNOWN.iter().map(move |text| of(None, text, partition));
            let updates = KNOWN_UPDATES.iter();
            let updates = updates.map(move |(before, text)| of(Some(before), text, partition));
            submitted.chain(updates).collect::<Vec<_>>()
        });
        all.collect()
    }

    pub(crate) fn request(&mut self) -> Request {
        let before = self.dice.one_in(10).then(|| {
            let mut texts = Texts::default();
            texts.set(Field::Node, Some(self.valid().into_bytes()));
            texts
        });
        Request {
            before,
            texts: self.texts(),
            partitions: self.pick(&PARTITIONS),
        }
    }

    fn texts(&mut self) -> Texts {
        let mut texts = Texts::default();
        match self.dice.below(10) {
            0..=5 => texts.set(Field::Node, Some(self.text())),
            6 => texts.set(Field::Task, Some(self.text())),
            _ => {
                for field in Field::ALL {
                    if self.dice.one_in(2) {
                        texts.set(field, Some(self.text()));
                    }
                }
            }
        }
        texts
    }

    fn text(&mut self) -> Vec<u8> {
        let mut text = match self.dice.below(20) {
            0 => String::new(),
            1..=7 => self.valid(),
            _ => self.items(),
        }
        .into_bytes();
        if self.dice.one_in(3) {
            for _ in 0..=self.dice.below(3) {
                self.mutate(&mut text);
            }
        }
        text.retain(|byte| *byte != 0);
        text
    }

    /// A user's text or gpufrac's, sometimes with other items.
    fn valid(&mut self) -> String {
        let mark = self.mark;
        let units = self.pick(&["1", "12", "13", "25", "25", "50", "50"]);
        let size = self.pick(&[
            "0.25",
            "0.5",
            "1",
            "10G",
            "mig:0.25",
            "mps:0.2",
            ".125",
            "percent:25",
        ]);
        let name = self.type_name();
        let text = match self.dice.below(8) {
            0 | 1 => format!("{mark}gpufrac:{size}"),
            2 => format!("gpufrac:{size}"),
            3 => format!("{mark}gpufrac:{units},{mark}shard:{units}"),
            4 => format!("{mark}shard:half:{units},{mark}gpufrac:{units}"),
            5 => format!("{mark}gpu:whole:1,{mark}gpufrac:100"),
            6 => format!("{mark}gpu:{name}:{units}"),
            _ => format!("{mark}shard:{units}"),
        };
        match self.dice.below(8) {
            0 => format!("{text},{mark}tmpdisk:5"),
            1 => format!("license/a:1,{text}"),
            2 => format!("{text},{}", self.item()),
            _ => text,
        }
    }

    fn items(&mut self) -> String {
        let count = 1 + self.dice.below(4);
        let mut text = self.item();
        for _ in 1..count {
            text.push_str(self.pick(&[",", ",", ",", ",", ",", ", ", ",,", ";", " "]));
            text.push_str(&self.item());
        }
        text
    }

    fn item(&mut self) -> String {
        if self.dice.one_in(25) {
            return String::new();
        }
        let mut item = String::new();
        item.push_str(match self.dice.below(20) {
            0..=9 => self.mark,
            10..=12 => "",
            13 => "gres/",
            14 => "gres:",
            15 => self.pick(&["GRES/", "Gres:", "gres=", "gres", "gRes/"]),
            16 => self.pick(&["gres/gres/", "gres:gres:", "gres/gres:", "gres//"]),
            17 => self.pick(&[
                "xgres/",
                "xgres:",
                "licensegres/",
                "cpu:gres/",
                " gres/",
                "\tgres:",
            ]),
            18 => self.pick(&["license/", "cpu:", "node=", "billing/"]),
            _ => "gres/gpu/",
        });
        item.push_str(self.pick(&NAMES));
        if self.dice.one_in(3) {
            item.push_str(self.separator());
            item.push_str(&self.type_name());
        }
        if !self.dice.one_in(6) {
            item.push_str(self.separator());
            item.push_str(self.pick(&COUNTS));
        }
        if self.dice.one_in(30) {
            item.push_str(self.separator());
            item.push_str(self.pick(&COUNTS));
        }
        item
    }

    fn type_name(&mut self) -> String {
        if self.dice.one_in(12) {
            self.alike[self.dice.below(self.alike.len())].clone()
        } else {
            self.pick(&TYPES).to_owned()
        }
    }

    fn separator(&mut self) -> &'static str {
        match self.dice.below(12) {
            0 => "=",
            1 => "/",
            _ => ":",
        }
    }

    fn mutate(&mut self, text: &mut Vec<u8>) {
        let place = self.dice.below(text.len() + 1);
        let rest = text.len() - place;
        let length = self.dice.below(rest.min(8) + 1);
        match self.dice.below(6) {
            // A part is removed, doubled or moved.
            0 => drop(text.drain(place..place + length)),
            1 => {
                let part = text[place..place + length].to_vec();
                text.splice(place..place, part);
            }
            2 => {
                let part: Vec<u8> = text.drain(place..place + length).collect();
                let place = self.dice.below(text.len() + 1);
                text.splice(place..place, part);
            }
            3 => {
                let token = self.pick(&TOKENS);
                text.splice(place..place, token.bytes());
            }
            4 if rest > 0 => text[place] ^= 1 << self.dice.below(8),
            _ if rest > 0 => text[place] = 1 + self.dice.below(255) as u8,
            _ => {}
        }
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.dice.below(choices.len())]
    }
}
