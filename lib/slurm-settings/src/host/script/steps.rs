//! The commands of a shell script, as far as the judgement of its exit status needs them.

/// The separator between a command and the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    End,
    And,
    Or,
    Pipe,
    Background,
}

/// A command with its separators.
#[derive(Debug)]
pub(super) struct Step {
    pub line: usize,
    pub words: Vec<String>,
    pub after: After,
}

/// Words before a command.
pub(super) const OPENING: [&str; 6] = ["then", "do", "else", "{", "(", "time"];
pub(super) const CLOSING: [&str; 6] = ["fi", "done", "esac", "}", ")", ";;"];
pub(super) const CONDITIONS: [&str; 4] = ["if", "elif", "while", "until"];
/// Programs that run another program and end with its status.
pub(super) const WRAPPERS: [&str; 8] = [
    "exec", "env", "timeout", "nice", "nohup", "command", "sudo", "ionice",
];
/// Programs that run another program without the variables of the caller.
const WITHOUT_VARIABLES: [&str; 4] = ["ssh", "systemd-run", "at", "batch"];
/// Programs that do so with an option for a login.
const LOGINS: [&str; 2] = ["su", "runuser"];

impl Step {
    /// The words without those that open a block or condition, and without assignments.
    pub fn own(&self) -> impl Iterator<Item = &str> {
        let words = self.words.iter().map(String::as_str);
        words.skip_while(|word| {
            let first = word.chars().next().unwrap_or('=');
            let assigns = word.contains('=') && (first.is_alphabetic() || first == '_');
            OPENING.contains(word) || CONDITIONS.contains(word) || *word == "!" || assigns
        })
    }

    pub fn condition(&self) -> Option<&str> {
        let first = self.words.first()?.as_str();
        CONDITIONS.contains(&first).then_some(first)
    }

    /// Whether the command is this builtin of the shell, with arguments.
    pub fn command_is(&self, builtin: &str) -> bool {
        let mut words = self.own();
        words.next() == Some(builtin) && words.next().is_some_and(|word| !word.contains(['<', '>']))
    }

    /// The wrappers before the command.
    pub fn wrappers(&self) -> impl Iterator<Item = &str> {
        self.own().take_while(|word| is_before_command(word))
    }

    /// The program that is run.
    pub fn command(&self) -> &str {
        let mut words = self.own();
        let first = words.next().unwrap_or_default();
        if !WRAPPERS.contains(&name(first)) {
            return first;
        }
        words
            .find(|word| !is_before_command(word))
            .unwrap_or_default()
    }

    /// Whether the step runs its program without the variables of the script, `env -i` for example.
    pub fn drops_variables(&self) -> bool {
        let words: Vec<&str> = self.own().collect();
        let options = |from: usize| {
            let rest = words[from + 1..].iter().copied();
            rest.take_while(|word| word.starts_with('-') || word.contains('='))
        };
        let known = words.iter().enumerate();
        let mut known = known.take_while(|(at, word)| *at == 0 || is_before_command(word));
        known.any(|(at, word)| match name(word) {
            "env" => options(at)
                .any(|word| matches!(word, "-" | "--ignore-environment") || is_flag(word, 'i')),
            "sudo" => {
                !options(at).any(|word| word.starts_with("--preserve-env") || is_flag(word, 'E'))
            }
            program if LOGINS.contains(&program) => {
                options(at).any(|word| matches!(word, "-" | "--login") || is_flag(word, 'l'))
            }
            program => WITHOUT_VARIABLES.contains(&program),
        })
    }

    /// The seconds after which `timeout` ends the program; None without a limit.
    pub fn time_limit(&self) -> Option<u64> {
        let mut words = self.wrappers().skip_while(|word| name(word) != "timeout");
        words.next()?;
        while let Some(word) = words.next() {
            match word {
                // These options have a value.
                "-k" | "-s" => drop(words.next()),
                word if word.starts_with('-') => {}
                word => return seconds(word),
            }
        }
        None
    }

    /// How much deeper in blocks the commands after this step are, and those before it: `if`, `fi`.
    pub fn depth_change(&self) -> isize {
        let mut change = 0;
        for word in self.words.iter().map(String::as_str) {
            match word {
                "if" | "case" | "for" | "while" | "until" | "select" | "{" | "(" => change += 1,
                "fi" | "esac" | "done" | "}" | ")" => change -= 1,
                "then" | "do" | "else" | "elif" | "!" | "function" => {}
                word if word.ends_with("()") => {}
                _ => break,
            }
        }
        change
    }

    /// For `exit`: whether it ends with a status other than 0 if the command before it failed.
    pub fn exit(&self) -> Option<bool> {
        let mut words = self.own();
        (words.next() == Some("exit")).then(|| words.next() != Some("0"))
    }

    /// The variable in `name=$?`.
    pub fn kept_status(&self) -> Option<&str> {
        let mut words = self.words.iter();
        words.find_map(|word| {
            let (name, value) = word.split_once('=')?;
            matches!(value, "$?" | "${?}").then_some(name)
        })
    }
}

/// The name of a program without its folder.
fn name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Whether a word is a group of one-letter options with this letter.
pub(super) fn is_flag(word: &str, flag: char) -> bool {
    let flags = word.strip_prefix('-');
    flags.is_some_and(|flags| !flags.starts_with('-') && flags.contains(flag))
}

/// A duration as timeout(1) reads it; 0 has no limit.
fn seconds(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['s', 'm', 'h', 'd']);
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    let seconds: f64 = digits.parse::<f64>().ok()? * unit;
    // A duration is a few digits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (seconds > 0.0).then_some(seconds as u64)
}

/// Whether a word can stand between the first wrapper and the command: a wrapper, its option or number, a variable.
fn is_before_command(word: &str) -> bool {
    WRAPPERS.contains(&name(word))
        || word.starts_with('-')
        || word.starts_with(|c: char| c.is_ascii_digit())
        || (word.contains('=') && !word.starts_with('/'))
}

/// The commands of a script, in order.
pub(super) fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut step = Reader::default();
    for (number, line) in text.lines().enumerate() {
        let joined = line.strip_suffix('\\');
        step.at = number + 1;
        step.read(joined.unwrap_or(line), &mut steps);
        if joined.is_none() && step.quote.is_none() {
            step.end(After::End, &mut steps);
        }
    }
    step.end(After::End, &mut steps);
    steps
}

/// The state of the parser.
#[derive(Default)]
struct Reader {
    /// The number of the current line.
    at: usize,
    /// The line of the command's first word.
    line: usize,
    words: Vec<String>,
    word: String,
    quote: Option<char>,
}

impl Reader {
    fn read(&mut self, line: &str, steps: &mut Vec<Step>) {
        let mut rest = line.chars().peekable();
        let mut before = ' ';
        while let Some(character) = rest.next() {
            let next = rest.peek().copied().unwrap_or(' ');
            match (self.quote, character) {
                (Some(open), _) if character == open => self.quote = None,
                (Some(_), _) => self.word.push(character),
                (None, '"' | '\'') => self.quote = Some(character),
                (None, '#') if self.word.is_empty() => break,
                (None, ';') => {
                    self.end(After::End, steps);
                }
                (None, '|') if next == '|' => {
                    rest.next();
                    self.end(After::Or, steps);
                }
                (None, '|') => self.end(After::Pipe, steps),
                (None, '&') if next == '&' => {
                    rest.next();
                    self.end(After::And, steps);
                }
                // `2>&1`, `&>file`
                (None, '&') if before == '>' || next == '>' => self.word.push(character),
                (None, '&') => self.end(After::Background, steps),
                (None, ' ' | '\t') => self.end_word(),
                (None, _) => self.word.push(character),
            }
            before = character;
        }
        self.end_word();
    }

    fn end_word(&mut self) {
        if !self.word.is_empty() {
            if self.words.is_empty() {
                self.line = self.at;
            }
            self.words.push(std::mem::take(&mut self.word));
        }
    }

    fn end(&mut self, after: After, steps: &mut Vec<Step>) {
        self.end_word();
        let (line, words) = (self.line, std::mem::take(&mut self.words));
        if !words.is_empty() {
            steps.push(Step { line, words, after });
        }
    }
}
